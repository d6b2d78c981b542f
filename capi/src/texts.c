// The texts of enumerations, and growing texts.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"

static const struct {
  const char* name;
  uint32_t byte_size;
} data_types[] = {
    {"<invalid>", 0}, {"BOOL", 1},  {"UINT8", 1}, {"UINT16", 2}, {"UINT32", 4}, {"UINT64", 8}, {"INT8", 1}, {"INT16", 2},
    {"INT32", 4},     {"INT64", 8}, {"FP16", 2},  {"FP32", 4},   {"FP64", 8},   {"BYTES", 0},  {"BF16", 2},
};
#define COUNT(array) (sizeof(array) / sizeof(*(array)))

bool is_data_type(int type)
{
  return type > TRITONSERVER_TYPE_INVALID && (size_t)type < COUNT(data_types);
}

bool is_memory_type(int type)
{
  return type >= TRITONSERVER_MEMORY_CPU && type <= TRITONSERVER_MEMORY_GPU;
}

const char* TRITONSERVER_DataTypeString(TRITONSERVER_DataType datatype)
{
  return data_types[is_data_type((int)datatype) ? datatype : 0].name;
}

uint32_t TRITONSERVER_DataTypeByteSize(TRITONSERVER_DataType datatype)
{
  return data_types[is_data_type((int)datatype) ? datatype : 0].byte_size;
}

TRITONSERVER_DataType TRITONSERVER_StringToDataType(const char* name)
{
  for (int type = 1; name != NULL && is_data_type(type); ++type) {
    if (strcmp(name, data_types[type].name) == 0) {
      return (TRITONSERVER_DataType)type;
    }
  }
  return TRITONSERVER_TYPE_INVALID;
}

static const char* text_of(const char* const* texts, size_t count, int value, const char* unknown)
{
  return value >= 0 && (size_t)value < count && texts[value] != NULL ? texts[value] : unknown;
}

const char* TRITONSERVER_MemoryTypeString(TRITONSERVER_MemoryType memory_type)
{
  static const char* const texts[] = {"CPU", "CPU_PINNED", "GPU"};
  return text_of(texts, COUNT(texts), (int)memory_type, "<invalid>");
}

const char* TRITONSERVER_ParameterTypeString(TRITONSERVER_ParameterType type)
{
  static const char* const texts[] = {"STRING", "INT", "BOOL", "DOUBLE", "BYTES"};
  return text_of(texts, COUNT(texts), (int)type, "<invalid>");
}

const char* TRITONSERVER_InstanceGroupKindString(TRITONSERVER_InstanceGroupKind kind)
{
  static const char* const texts[] = {"AUTO", "CPU", "GPU", "MODEL"};
  return text_of(texts, COUNT(texts), (int)kind, "<invalid>");
}

const char* TRITONSERVER_InferenceTraceLevelString(TRITONSERVER_InferenceTraceLevel level)
{
  static const char* const texts[] = {"DISABLED", "MIN", "MAX", NULL, "TIMESTAMPS", NULL, NULL, NULL, "TENSORS"};
  return text_of(texts, COUNT(texts), (int)level, "<unknown>");
}

const char* TRITONSERVER_InferenceTraceActivityString(TRITONSERVER_InferenceTraceActivity activity)
{
  static const char* const texts[] = {
      "REQUEST_START", "QUEUE_START",        "COMPUTE_START",        "COMPUTE_INPUT_END",     "COMPUTE_OUTPUT_START",
      "COMPUTE_END",   "REQUEST_END",        "TENSOR_QUEUE_INPUT",   "TENSOR_BACKEND_INPUT",  "TENSOR_BACKEND_OUTPUT",
      "CUSTOM_ACTIVITY"};
  return text_of(texts, COUNT(texts), (int)activity, "<unknown>");
}

TRITONSERVER_Error* TRITONSERVER_ApiVersion(uint32_t* major, uint32_t* minor)
{
  REQUIRE(major);
  REQUIRE(minor);
  *major = TRITONSERVER_API_VERSION_MAJOR;
  *minor = TRITONSERVER_API_VERSION_MINOR;
  return NULL;
}

TRITONSERVER_Error* set_text(char** field, const char* text)
{
  char* copy = text == NULL ? NULL : strdup(text);
  if (text != NULL && copy == NULL) {
    return out_of_memory();
  }
  free(*field);
  *field = copy;
  return NULL;
}

void build(struct builder* builder, const char* bytes, size_t size)
{
  if (builder->failed) {
    return;
  }
  if (builder->size + size + 1 > builder->room) {
    size_t room = 2 * builder->room + size + 64;
    char* larger = realloc(builder->text, room);
    if (larger == NULL) {
      builder->failed = true;
      return;
    }
    builder->text = larger;
    builder->room = room;
  }
  memcpy(builder->text + builder->size, bytes, size);
  builder->size += size;
  builder->text[builder->size] = '\0';
}

void build_text(struct builder* builder, const char* text)
{
  build(builder, text, strlen(text));
}

void build_json_string(struct builder* builder, const char* text)
{
  build_text(builder, "\"");
  for (const char* at = text; *at != '\0'; ++at) {
    char escaped[8];
    if (*at == '"' || *at == '\\') {
      build(builder, "\\", 1);
    }
    if ((unsigned char)*at < 0x20) {
      snprintf(escaped, sizeof(escaped), "\\u%04x", (unsigned)*at);
      build_text(builder, escaped);
    } else {
      build(builder, at, 1);
    }
  }
  build_text(builder, "\"");
}

void repoagent_text_set(core_text* text, const char* bytes, size_t byte_size)
{
  char* copy = malloc(byte_size + 1);
  if (copy != NULL) {
    memcpy(copy, bytes, byte_size);
    copy[byte_size] = '\0';
  }
  free(text->text);
  text->text = copy;
  text->byte_size = copy == NULL ? 0 : byte_size;
}
