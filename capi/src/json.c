// Whether a text is JSON (RFC 8259), without reading anything out of it.
#include <string.h>

#include "layer.h"

#define DEEPEST 256

struct reader {
  const char* at;
  const char* end;
  const char* fault;
};

static void skip_space(struct reader* reader)
{
  while (reader->at < reader->end && memchr(" \t\r\n", *reader->at, 4) != NULL) {
    ++reader->at;
  }
}

static bool complain(struct reader* reader, const char* fault)
{
  reader->fault = reader->fault == NULL ? fault : reader->fault;
  return false;
}

static bool take(struct reader* reader, char wanted)
{
  if (reader->at < reader->end && *reader->at == wanted) {
    ++reader->at;
    return true;
  }
  return false;
}

static bool take_word(struct reader* reader, const char* word)
{
  size_t size = strlen(word);
  if ((size_t)(reader->end - reader->at) < size || memcmp(reader->at, word, size) != 0) {
    return complain(reader, "not a value");
  }
  reader->at += size;
  return true;
}

static bool take_hex(struct reader* reader)
{
  for (int digit = 0; digit < 4; ++digit, ++reader->at) {
    if (reader->at == reader->end || *reader->at == '\0' || strchr("0123456789abcdefABCDEF", *reader->at) == NULL) {
      return complain(reader, "an escape is not four hexadecimal digits");
    }
  }
  return true;
}

static bool take_string(struct reader* reader)
{
  if (!take(reader, '"')) {
    return complain(reader, "expected a string");
  }
  while (reader->at < reader->end) {
    unsigned char now = (unsigned char)*reader->at++;
    if (now == '"') {
      return true;
    }
    if (now < 0x20) {
      return complain(reader, "a control character in a string");
    }
    if (now != '\\') {
      continue;
    }
    if (take(reader, 'u')) {
      if (!take_hex(reader)) {
        return false;
      }
    } else if (reader->at == reader->end || *reader->at == '\0' || strchr("\"\\/bfnrt", *reader->at++) == NULL) {
      return complain(reader, "an unknown escape in a string");
    }
  }
  return complain(reader, "a string does not end");
}

static bool take_digits(struct reader* reader)
{
  const char* start = reader->at;
  while (reader->at < reader->end && *reader->at >= '0' && *reader->at <= '9') {
    ++reader->at;
  }
  return reader->at > start;
}

static bool take_number(struct reader* reader)
{
  take(reader, '-');
  if (!take(reader, '0') && !take_digits(reader)) {
    return complain(reader, "not a value");
  }
  if (take(reader, '.') && !take_digits(reader)) {
    return complain(reader, "not a number");
  }
  if (take(reader, 'e') || take(reader, 'E')) {
    if (!take(reader, '+')) {
      take(reader, '-');
    }
    if (!take_digits(reader)) {
      return complain(reader, "not a number");
    }
  }
  return true;
}

static bool take_value(struct reader* reader, int depth);

static bool take_members(struct reader* reader, char close, bool named, int depth)
{
  skip_space(reader);
  if (take(reader, close)) {
    return true;
  }
  do {
    if (named) {
      skip_space(reader);
      if (!take_string(reader)) {
        return false;
      }
      skip_space(reader);
      if (!take(reader, ':')) {
        return complain(reader, "expected ':'");
      }
    }
    if (!take_value(reader, depth)) {
      return false;
    }
  } while (take(reader, ','));
  return take(reader, close) || complain(reader, "expected ',' or an end");
}

static bool take_value(struct reader* reader, int depth)
{
  if (depth == DEEPEST) {
    return complain(reader, "too many levels");
  }
  skip_space(reader);
  char now = reader->at < reader->end ? *reader->at : '\0';
  bool taken;
  switch (now) {
    case '{':
    case '[':
      ++reader->at;
      taken = take_members(reader, now == '{' ? '}' : ']', now == '{', depth + 1);
      break;
    case '"':
      taken = take_string(reader);
      break;
    case 't':
      taken = take_word(reader, "true");
      break;
    case 'f':
      taken = take_word(reader, "false");
      break;
    case 'n':
      taken = take_word(reader, "null");
      break;
    default:
      taken = take_number(reader);
  }
  skip_space(reader);
  return taken;
}

const char* json_fault(const char* text, size_t size)
{
  struct reader reader = {text, text + size, NULL};
  if (take_value(&reader, 0) && reader.at != reader.end) {
    return "something follows the value";
  }
  return reader.fault;
}
