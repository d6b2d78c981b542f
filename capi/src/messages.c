// Messages, metrics pages and parameters.
#include <stdlib.h>
#include <string.h>

#include "layer.h"

#define MOST_PARAMETERS 1000000

static void destroy_message(void* object)
{
  struct message* message = object;
  free(message->json.text);
  free(message);
}

static TRITONSERVER_Error* publish_text(core_text text, enum kind kind, void* out)
{
  struct message* message = calloc(1, sizeof(*message));
  if (message == NULL || text.text == NULL) {
    free(text.text);
    free(message);
    return out_of_memory();
  }
  message->json = text;
  return publish(kind, message, destroy_message, out);
}

TRITONSERVER_Error* message_of(core_text json, TRITONSERVER_Message** message)
{
  return publish_text(json, KIND_MESSAGE, message);
}

TRITONSERVER_Error* TRITONSERVER_MessageNewFromSerializedJson(
    TRITONSERVER_Message** message, const char* text, size_t byte_size)
{
  REQUIRE(message);
  REQUIRE(text);
  const char* fault = json_fault(text, byte_size);
  if (fault != NULL) {
    return INVALID("failed to parse the message as JSON: %s", fault);
  }
  core_text copy = {NULL, 0};
  repoagent_text_set(&copy, text, byte_size);
  return message_of(copy, message);
}

TRITONSERVER_Error* TRITONSERVER_MessageDelete(TRITONSERVER_Message* message)
{
  return delete_handle(message, KIND_MESSAGE);
}

TRITONSERVER_Error* TRITONSERVER_MessageSerializeToJson(
    TRITONSERVER_Message* message, const char** text, size_t* byte_size)
{
  BORROW(KIND_MESSAGE, message, it, message);
  REQUIRE(text);
  REQUIRE(byte_size);
  *text = it->json.text;
  *byte_size = it->json.byte_size;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_ServerMetrics(TRITONSERVER_Server* server, TRITONSERVER_Metrics** metrics)
{
  BORROW(KIND_SERVER, server, it, server);
  REQUIRE(metrics);
  CROSS(core);
  core_text page = {NULL, 0};
  TRY(core->document(it->core, CORE_METRICS, "", -1, 0, &page));
  return publish_text(page, KIND_METRICS, metrics);
}

TRITONSERVER_Error* TRITONSERVER_MetricsDelete(TRITONSERVER_Metrics* metrics)
{
  return delete_handle(metrics, KIND_METRICS);
}

TRITONSERVER_Error* TRITONSERVER_MetricsFormatted(
    TRITONSERVER_Metrics* metrics, TRITONSERVER_MetricFormat format, const char** text, size_t* byte_size)
{
  BORROW(KIND_METRICS, message, it, metrics);
  REQUIRE(text);
  REQUIRE(byte_size);
  if (format != TRITONSERVER_METRIC_PROMETHEUS) {
    return INVALID("unknown metrics format '%d'", (int)format);
  }
  *text = it->json.text;
  *byte_size = it->json.byte_size;
  return NULL;
}

static void destroy_parameter(void* object)
{
  struct parameter* parameter = object;
  free(parameter->name);
  free(parameter->text);
  free(parameter);
}

static TRITONSERVER_Parameter* publish_parameter(struct parameter* parameter, const char* name)
{
  parameter->name = strdup(name);
  void* handle = parameter->name == NULL ? NULL : handle_new(KIND_PARAMETER, parameter, destroy_parameter);
  if (handle == NULL) {
    destroy_parameter(parameter);
  }
  return handle;
}

static bool set_value(struct parameter* parameter, const void* value)
{
  switch (parameter->type) {
    case TRITONSERVER_PARAMETER_STRING:
      parameter->text = strdup(value);
      parameter->bytes = parameter->text;
      parameter->byte_size = parameter->text == NULL ? 0 : strlen(parameter->text);
      return parameter->text != NULL;
    case TRITONSERVER_PARAMETER_INT:
      memcpy(&parameter->integer, value, sizeof(int64_t));
      return true;
    case TRITONSERVER_PARAMETER_BOOL:
      parameter->integer = *(const unsigned char*)value != 0;
      return true;
    case TRITONSERVER_PARAMETER_DOUBLE:
      memcpy(&parameter->real, value, sizeof(double));
      return true;
    default:
      return false;
  }
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterNew(
    const char* name, const TRITONSERVER_ParameterType type, const void* value)
{
  struct parameter* parameter = name == NULL || value == NULL ? NULL : calloc(1, sizeof(*parameter));
  if (parameter == NULL) {
    return NULL;
  }
  parameter->type = (int)type;
  if (!set_value(parameter, value)) {
    destroy_parameter(parameter);
    return NULL;
  }
  return publish_parameter(parameter, name);
}

TRITONSERVER_Parameter* TRITONSERVER_ParameterBytesNew(const char* name, const void* bytes, const uint64_t byte_size)
{
  bool missing = name == NULL || (bytes == NULL && byte_size > 0);
  struct parameter* parameter = missing ? NULL : calloc(1, sizeof(*parameter));
  if (parameter == NULL) {
    return NULL;
  }
  parameter->type = TRITONSERVER_PARAMETER_BYTES;
  parameter->bytes = bytes;
  parameter->byte_size = byte_size;
  return publish_parameter(parameter, name);
}

void TRITONSERVER_ParameterDelete(TRITONSERVER_Parameter* parameter)
{
  handle_delete(parameter, KIND_PARAMETER);
}

void borrowed_delete(struct borrowed* borrowed)
{
  for (uint64_t index = 0; index < borrowed->count; ++index) {
    handle_return(borrowed->kept[index]);
  }
  free(borrowed->items);
  free(borrowed->kept);
}

TRITONSERVER_Error* borrow_parameters(const TRITONSERVER_Parameter** list, uint64_t count, struct borrowed* out)
{
  if (count > 0 && list == NULL) {
    return INVALID("argument 'parameters' is NULL, and its count %llu", (unsigned long long)count);
  }
  if (count > MOST_PARAMETERS) {
    return INVALID("%llu parameters are too many", (unsigned long long)count);
  }
  out->items = calloc(count + 1, sizeof(*out->items));
  out->kept = calloc(count + 1, sizeof(*out->kept));
  if (out->items == NULL || out->kept == NULL) {
    return out_of_memory();
  }
  for (uint64_t index = 0; index < count; ++index) {
    struct parameter* it = handle_borrow(list[index], KIND_PARAMETER);
    if (it == NULL) {
      return bad_handle(list[index], KIND_PARAMETER);
    }
    out->kept[out->count] = it;
    out->items[out->count++] =
        (core_parameter){it->name, it->type, it->integer, it->real, it->bytes, it->byte_size};
  }
  return NULL;
}
