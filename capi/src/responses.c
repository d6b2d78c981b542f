// Responses: made of what Python answers, and read by the program.
#include <stdlib.h>
#include <string.h>

#include "inference.h"

struct output {
  char* name;
  int datatype;
  int64_t* shape;
  uint64_t dim_count;
  struct buffer* buffer;
};

// A label that was asked for; all of them stay to the end of the response.
struct label {
  struct label* next;
  core_text text;
};

struct response {
  struct object object;
  struct trace* trace;
  core_object server;
  char* model_name;
  int64_t model_version;
  char* id;
  TRITONSERVER_Error* error;
  struct output* outputs;
  uint32_t output_count;
  struct named_value* parameters;
  uint32_t parameter_count;
  _Atomic(struct label*) labels;
};

static void destroy_response(void* object)
{
  struct response* it = object;
  for (uint32_t index = 0; index < it->output_count; ++index) {
    buffer_let_go(it->outputs[index].buffer);
    free(it->outputs[index].name);
    free(it->outputs[index].shape);
  }
  for (struct label *label = it->labels, *next; label != NULL; label = next) {
    next = label->next;
    free(label->text.text);
    free(label);
  }
  free(it->outputs);
  free_values(it->parameters, it->parameter_count);
  free(it->model_name);
  free(it->id);
  error_release(it->error);
  trace_let_go(it->trace);
  free(it);
}

static TRITONSERVER_Error* take_output(struct submission* of, const core_output* from, struct output* to)
{
  to->name = strdup(from->name);
  to->shape = copy_shape(from->shape, from->dim_count);
  if (to->name == NULL || to->shape == NULL) {
    return out_of_memory();
  }
  to->datatype = from->datatype;
  to->dim_count = from->dim_count;
  return output_take(of, from, &to->buffer);
}

static TRITONSERVER_Error* take_outputs(struct submission* of, const core_response* from, struct response* to)
{
  TRY(outputs_start(of));
  to->outputs = calloc(from->output_count + 1, sizeof(*to->outputs));
  if (to->outputs == NULL) {
    return out_of_memory();
  }
  for (uint64_t index = 0; index < from->output_count; ++index) {
    ++to->output_count;
    TRY(take_output(of, &from->outputs[index], &to->outputs[index]));
  }
  return NULL;
}

static TRITONSERVER_Error* copy_parameters(const core_response* from, struct response* to)
{
  to->parameters = calloc(from->parameter_count + 1, sizeof(*to->parameters));
  if (to->parameters == NULL) {
    return out_of_memory();
  }
  for (uint64_t index = 0; index < from->parameter_count; ++index) {
    const core_parameter* it = &from->parameters[index];
    struct named_value* value = &to->parameters[to->parameter_count++];
    *value = (struct named_value){.type = it->type, .integer = it->integer, .real = it->real};
    TRY(set_text(&value->name, it->name));
    if (it->bytes != NULL) {
      TRY(set_text(&value->text, it->bytes));
    }
  }
  return NULL;
}

TRITONSERVER_InferenceResponse* response_of(struct submission* of, const core_response* from)
{
  struct response* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    error_release(from->error);
    return NULL;
  }
  it->server = of->server;
  it->model_version = from->model_version;
  it->error = from->error;
  it->trace = of->trace;
  trace_share(it->trace);
  TRITONSERVER_Error* error = set_text(&it->model_name, from->model_name);
  error = error != NULL ? error : set_text(&it->id, from->id);
  error = error != NULL || from->error != NULL ? error : copy_parameters(from, it);
  if (error == NULL && it->error == NULL) {
    error = take_outputs(of, from, it);
  }
  if (error != NULL) {
    for (uint32_t index = 0; index < it->output_count; ++index) {
      buffer_let_go(it->outputs[index].buffer);
      it->outputs[index].buffer = NULL;
    }
    it->error = it->error != NULL ? it->error : error;
  }
  outputs_end(of);
  if (it->error != NULL) {
    error_keep(it->error);
  }
  TRITONSERVER_InferenceResponse* handle = NULL;
  TRITONSERVER_Error* unpublished = publish(KIND_RESPONSE, it, destroy_response, &handle);
  TRITONSERVER_ErrorDelete(unpublished);
  return handle;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseDelete(TRITONSERVER_InferenceResponse* response)
{
  return delete_handle(response, KIND_RESPONSE);
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseError(TRITONSERVER_InferenceResponse* response)
{
  BORROW(KIND_RESPONSE, response, it, response);
  return it->error;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseModel(
    TRITONSERVER_InferenceResponse* response, const char** model_name, int64_t* model_version)
{
  BORROW(KIND_RESPONSE, response, it, response);
  REQUIRE(model_name);
  REQUIRE(model_version);
  *model_name = it->model_name;
  *model_version = it->model_version;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseId(TRITONSERVER_InferenceResponse* response, const char** request_id)
{
  BORROW(KIND_RESPONSE, response, it, response);
  REQUIRE(request_id);
  *request_id = it->id;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameterCount(
    TRITONSERVER_InferenceResponse* response, uint32_t* count)
{
  BORROW(KIND_RESPONSE, response, it, response);
  REQUIRE(count);
  *count = it->parameter_count;
  return NULL;
}

static const void* value_of(const struct named_value* value)
{
  switch (value->type) {
    case TRITONSERVER_PARAMETER_STRING:
    case TRITONSERVER_PARAMETER_BYTES:
      return value->text;
    case TRITONSERVER_PARAMETER_DOUBLE:
      return &value->real;
    default:  // a bool is the first byte of its number, as this is little-endian
      return &value->integer;
  }
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseParameter(
    TRITONSERVER_InferenceResponse* response, const uint32_t index, const char** name,
    TRITONSERVER_ParameterType* type, const void** value)
{
  BORROW(KIND_RESPONSE, response, it, response);
  REQUIRE(name);
  REQUIRE(type);
  REQUIRE(value);
  if (index >= it->parameter_count) {
    return INVALID("out of bounds index %u: the response has %u parameters", index, it->parameter_count);
  }
  *name = it->parameters[index].name;
  *type = (TRITONSERVER_ParameterType)it->parameters[index].type;
  *value = value_of(&it->parameters[index]);
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutputCount(
    TRITONSERVER_InferenceResponse* response, uint32_t* count)
{
  BORROW(KIND_RESPONSE, response, it, response);
  REQUIRE(count);
  *count = it->error == NULL ? it->output_count : 0;
  return NULL;
}

#define OUTPUT(name, index)                                                                                 \
  if (it->error != NULL || (index) >= it->output_count) {                                                   \
    return INVALID(                                                                                         \
        "out of bounds index %u: the response has %u outputs", index, it->error == NULL ? it->output_count : 0); \
  }                                                                                                         \
  struct output* name = &it->outputs[index]

TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutput(
    TRITONSERVER_InferenceResponse* response, const uint32_t index, const char** name, TRITONSERVER_DataType* datatype,
    const int64_t** shape, uint64_t* dim_count, const void** base, size_t* byte_size,
    TRITONSERVER_MemoryType* memory_type, int64_t* memory_type_id, void** userp)
{
  BORROW(KIND_RESPONSE, response, it, response);
  REQUIRE(name);
  REQUIRE(datatype);
  REQUIRE(shape);
  REQUIRE(dim_count);
  REQUIRE(base);
  REQUIRE(byte_size);
  REQUIRE(memory_type);
  REQUIRE(memory_type_id);
  REQUIRE(userp);
  OUTPUT(output, index);
  *name = output->name;
  *datatype = (TRITONSERVER_DataType)output->datatype;
  *shape = output->shape;
  *dim_count = output->dim_count;
  *base = output->buffer->place.base;
  *byte_size = output->buffer->place.byte_size;
  *memory_type = output->buffer->memory_type;
  *memory_type_id = output->buffer->memory_type_id;
  *userp = output->buffer->userp;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceResponseOutputClassificationLabel(
    TRITONSERVER_InferenceResponse* response, const uint32_t index, const size_t class_index, const char** label)
{
  BORROW(KIND_RESPONSE, response, it, response);
  REQUIRE(label);
  OUTPUT(output, index);
  CROSS(core);
  struct label* made = calloc(1, sizeof(*made));
  if (made == NULL) {
    return out_of_memory();
  }
  TRITONSERVER_Error* error =
      core->model_label(it->server, it->model_name, it->model_version, output->name, class_index, &made->text);
  if (error != NULL || made->text.text == NULL) {
    free(made->text.text);
    free(made);
    return error != NULL ? error : out_of_memory();
  }
  made->next = atomic_load(&it->labels);
  while (!atomic_compare_exchange_weak(&it->labels, &made->next, made)) {
  }
  *label = made->text.byte_size > 0 ? made->text.text : NULL;
  return NULL;
}
