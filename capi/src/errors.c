#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"

struct error {
  struct object object;
  TRITONSERVER_Error_Code code;
  bool immortal;
  char text[];
};

static struct {
  struct error error;
  char text[sizeof("out of memory")];
} reserve;

static void destroy(void* object)
{
  free(object);
}

static void destroy_nothing(void* object)
{
  (void)object;
}

// Made at the start, for when there is no memory for another one.
__attribute__((constructor)) static void make_reserve(void)
{
  reserve.error.code = TRITONSERVER_ERROR_INTERNAL;
  reserve.error.immortal = true;
  memcpy(reserve.error.text, "out of memory", sizeof("out of memory"));
  handle_new(KIND_ERROR, &reserve.error, destroy_nothing);
}

TRITONSERVER_Error* out_of_memory(void)
{
  return reserve.error.object.handle;
}

static TRITONSERVER_Error* make(TRITONSERVER_Error_Code code, const char* text, size_t size)
{
  struct error* error = malloc(sizeof(struct error) + size + 1);
  if (error == NULL) {
    return out_of_memory();
  }
  error->code = code;
  error->immortal = false;
  memcpy(error->text, text, size);
  error->text[size] = '\0';
  void* handle = handle_new(KIND_ERROR, error, destroy);
  if (handle == NULL) {
    free(error);
    return out_of_memory();
  }
  return handle;
}

TRITONSERVER_Error* fail(TRITONSERVER_Error_Code code, const char* format, ...)
{
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  int size = vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  size_t kept = size < 0 ? 0 : (size_t)size < sizeof(text) ? (size_t)size : sizeof(text) - 1;
  return make(code, text, kept);
}

TRITONSERVER_Error* bad_handle(const void* handle, enum kind kind)
{
  if (handle == NULL) {
    return INVALID("the %s is NULL", kind_name(kind));
  }
  return INVALID("not a living %s: it was deleted, or is something else", kind_name(kind));
}

TRITONSERVER_Error* delete_handle(const void* handle, enum kind kind)
{
  return handle_delete(handle, kind) ? NULL : bad_handle(handle, kind);
}

TRITONSERVER_Error* publish(enum kind kind, void* object, void (*destroy_object)(void*), void* out)
{
  void* handle = handle_new(kind, object, destroy_object);
  if (handle == NULL) {
    destroy_object(object);
    return out_of_memory();
  }
  *(void**)out = handle;
  return NULL;
}

void return_borrowed(void* object)
{
  handle_return(*(void**)object);
}

void log_and_delete(TRITONSERVER_Error* error, const char* what)
{
  if (error == NULL) {
    return;
  }
  char text[1200];
  snprintf(text, sizeof(text), "%s: %s", what, TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  TRITONSERVER_ErrorDelete(TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, text));
}

TRITONSERVER_Error* TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char* text)
{
  if (code < TRITONSERVER_ERROR_UNKNOWN || code > TRITONSERVER_ERROR_CANCELLED) {
    code = TRITONSERVER_ERROR_UNKNOWN;
  }
  text = text == NULL ? "" : text;
  return make(code, text, strlen(text));
}

// The error, which stays while the caller has its handle.
static struct error* look(TRITONSERVER_Error* handle)
{
  struct error* error = handle_borrow(handle, KIND_ERROR);
  handle_return(error);
  return error;
}

void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* handle)
{
  struct error* error = look(handle);
  if (error != NULL && !error->immortal) {
    handle_delete(handle, KIND_ERROR);
  }
}

// A response keeps its error: only error_release deletes it then.
void error_keep(TRITONSERVER_Error* handle)
{
  struct error* error = look(handle);
  if (error != NULL) {
    error->immortal = true;
  }
}

void error_release(TRITONSERVER_Error* handle)
{
  struct error* error = look(handle);
  if (error != NULL && error != &reserve.error) {
    handle_delete(handle, KIND_ERROR);
  }
}

TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error* handle)
{
  struct error* error = look(handle);
  return error == NULL ? TRITONSERVER_ERROR_UNKNOWN : error->code;
}

const char* code_text(int code)
{
  static const char* const texts[] = {"Unknown",     "Internal",    "Not found",      "Invalid argument",
                                      "Unavailable", "Unsupported", "Already exists", "Cancelled"};
  return code >= 0 && (size_t)code < sizeof(texts) / sizeof(*texts) ? texts[code] : NULL;
}

const char* TRITONSERVER_ErrorCodeString(TRITONSERVER_Error* handle)
{
  struct error* error = look(handle);
  if (error == NULL) {
    return NULL;
  }
  // Triton has no text for what was cancelled.
  return error->code == TRITONSERVER_ERROR_CANCELLED ? "<invalid code>" : code_text((int)error->code);
}

const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* handle)
{
  struct error* error = look(handle);
  return error == NULL ? NULL : error->text;
}
