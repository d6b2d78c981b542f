// The fields of requests. While a request runs it can only be read and cancelled.
#include <stdlib.h>
#include <string.h>

#include "layer.h"

#define MOST_DIMS 1000
#define MOST_ITEMS 100000

static void unlock(void* request)
{
  struct request* it = *(struct request**)request;
  if (it != NULL) {
    pthread_mutex_unlock(&it->lock);
  }
}

// `it`: the request, locked to the end of the function.
#define READ()                                                                        \
  BORROW(KIND_REQUEST, request, it, request);                                         \
  struct request* locked __attribute__((cleanup(unlock))) = it;                       \
  pthread_mutex_lock(&locked->lock)

#define CHANGE()                                                                       \
  READ();                                                                              \
  if (it->running != 0) {                                                              \
    return INVALID("the request belongs to the server until its release callback is called"); \
  }

static void clear_pieces(struct input* input)
{
  free(input->pieces);
  input->pieces = NULL;
  input->piece_count = 0;
}

static void clear_input(struct input* input)
{
  clear_pieces(input);
  free(input->name);
  free(input->shape);
}

static void clear_inputs(struct request* it)
{
  for (size_t index = 0; index < it->input_count; ++index) {
    clear_input(&it->inputs[index]);
  }
  it->input_count = 0;
}

static void clear_outputs(struct request* it)
{
  for (size_t index = 0; index < it->output_count; ++index) {
    free(it->outputs[index]);
  }
  it->output_count = 0;
}

static void destroy(void* object)
{
  struct request* it = object;
  clear_inputs(it);
  clear_outputs(it);
  for (size_t index = 0; index < it->parameter_count; ++index) {
    free(it->parameters[index].name);
    free(it->parameters[index].text);
  }
  free(it->inputs);
  free(it->outputs);
  free(it->parameters);
  free(it->model_name);
  free(it->id);
  free(it->correlation_text);
  pthread_mutex_destroy(&it->lock);
  free(it);
}

// `list` with room for one more item; false if there is none.
static bool grow(void* list, size_t count, size_t size)
{
  if (count >= MOST_ITEMS) {
    return false;
  }
  if ((count & (count - 1)) != 0 && count != 0) {
    return true;
  }
  void* larger = realloc(*(void**)list, (count == 0 ? 4 : 2 * count) * size);
  if (larger == NULL) {
    return false;
  }
  *(void**)list = larger;
  return true;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestNew(
    TRITONSERVER_InferenceRequest** request, TRITONSERVER_Server* server, const char* model_name,
    const int64_t model_version)
{
  BORROW(KIND_SERVER, server, of, server);
  REQUIRE(request);
  REQUIRE(model_name);
  CROSS(core);
  core_model model = {0, 0};
  TRY(core->model_find(of->core, model_name, model_version, &model));
  struct request* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  pthread_mutex_init(&it->lock, NULL);
  it->server = of->core;
  it->model = model;
  it->priority = model.default_priority;
  it->model_version = model_version;
  it->model_name = strdup(model_name);
  it->id = strdup("");
  if (it->model_name == NULL || it->id == NULL) {
    destroy(it);
    return out_of_memory();
  }
  return publish(KIND_REQUEST, it, destroy, request);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestDelete(TRITONSERVER_InferenceRequest* request)
{
  CHANGE();
  return delete_handle(request, KIND_REQUEST);
}

#define GET(NAME, type, expression)                                                                          \
  TRITONSERVER_Error* TRITONSERVER_InferenceRequest##NAME(TRITONSERVER_InferenceRequest* request, type* value) \
  {                                                                                                          \
    READ();                                                                                                  \
    REQUIRE(value);                                                                                          \
    *value = (expression);                                                                                   \
    return NULL;                                                                                             \
  }

#define SET(NAME, type, statement)                                                                          \
  TRITONSERVER_Error* TRITONSERVER_InferenceRequest##NAME(TRITONSERVER_InferenceRequest* request, type value) \
  {                                                                                                         \
    CHANGE();                                                                                               \
    statement;                                                                                              \
    return NULL;                                                                                            \
  }

static uint64_t known_priority(const struct request* it, uint64_t priority)
{
  return priority >= 1 && priority <= it->model.priority_levels ? priority : it->model.default_priority;
}

GET(Id, const char*, it->id)
GET(Flags, uint32_t, it->flags)
GET(Priority, uint32_t, (uint32_t)it->priority)
GET(PriorityUInt64, uint64_t, it->priority)
GET(TimeoutMicroseconds, uint64_t, it->timeout_us)
GET(IsCancelled, bool, it->cancelled)
SET(SetFlags, uint32_t, it->flags = value)
SET(SetPriority, uint32_t, it->priority = known_priority(it, value))
SET(SetPriorityUInt64, uint64_t, it->priority = known_priority(it, value))
SET(SetTimeoutMicroseconds, uint64_t, it->timeout_us = value)

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetId(TRITONSERVER_InferenceRequest* request, const char* id)
{
  CHANGE();
  return set_text(&it->id, id == NULL ? "" : id);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestCorrelationId(
    TRITONSERVER_InferenceRequest* request, uint64_t* correlation_id)
{
  READ();
  REQUIRE(correlation_id);
  if (it->correlation_text != NULL) {
    return INVALID("given request's correlation id is not an unsigned int");
  }
  *correlation_id = it->correlation_id;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestCorrelationIdString(
    TRITONSERVER_InferenceRequest* request, const char** correlation_id)
{
  READ();
  REQUIRE(correlation_id);
  if (it->correlation_text == NULL) {
    return INVALID("given request's correlation id is not a string");
  }
  *correlation_id = it->correlation_text;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetCorrelationId(
    TRITONSERVER_InferenceRequest* request, uint64_t correlation_id)
{
  CHANGE();
  it->correlation_id = correlation_id;
  return set_text(&it->correlation_text, NULL);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetCorrelationIdString(
    TRITONSERVER_InferenceRequest* request, const char* correlation_id)
{
  CHANGE();
  REQUIRE(correlation_id);
  return set_text(&it->correlation_text, correlation_id);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestCancel(TRITONSERVER_InferenceRequest* request)
{
  BORROW(KIND_REQUEST, request, it, request);
  pthread_mutex_lock(&it->lock);
  uint64_t running = it->running;
  it->cancelled = true;
  pthread_mutex_unlock(&it->lock);
  if (running == 0) {
    return NULL;
  }
  CROSS(core);
  return core->cancel(running);
}

static struct input* find_input(const struct request* it, const char* name)
{
  for (size_t index = 0; index < it->input_count; ++index) {
    if (strcmp(it->inputs[index].name, name) == 0) {
      return &it->inputs[index];
    }
  }
  return NULL;
}

#define FIND_INPUT(input, name)                                       \
  struct input* input = find_input(it, name);                         \
  if (input == NULL) {                                                \
    return INVALID("input '%s' does not exist in request", name);     \
  }

static TRITONSERVER_Error* add_input(
    struct request* it, const char* name, int datatype, const int64_t* shape, uint64_t dim_count)
{
  if (!grow(&it->inputs, it->input_count, sizeof(*it->inputs))) {
    return out_of_memory();
  }
  struct input added = {0};
  added.name = strdup(name);
  added.shape = malloc((dim_count + 1) * sizeof(int64_t));
  if (added.name == NULL || added.shape == NULL) {
    clear_input(&added);
    return out_of_memory();
  }
  if (dim_count > 0) {
    memcpy(added.shape, shape, dim_count * sizeof(int64_t));
  }
  added.datatype = datatype;
  added.dim_count = dim_count;
  it->inputs[it->input_count++] = added;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddInput(
    TRITONSERVER_InferenceRequest* request, const char* name, const TRITONSERVER_DataType datatype,
    const int64_t* shape, uint64_t dim_count)
{
  CHANGE();
  REQUIRE(name);
  if (!is_data_type((int)datatype)) {
    return INVALID("input '%s' cannot be of type %d", name, (int)datatype);
  }
  if (dim_count > MOST_DIMS || (dim_count > 0 && shape == NULL)) {
    return INVALID("input '%s': not a shape of %llu dimensions", name, (unsigned long long)dim_count);
  }
  if (find_input(it, name) != NULL) {
    return INVALID("input '%s' already exists in request", name);
  }
  return add_input(it, name, (int)datatype, shape, dim_count);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRawInput(TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  if (it->input_count > 0) {
    return INVALID("raw input '%s' can't be added to a request that has other inputs", name);
  }
  return add_input(it, name, TRITONSERVER_TYPE_INVALID, NULL, 0);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveInput(TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  FIND_INPUT(input, name);
  clear_input(input);
  size_t behind = it->input_count - (size_t)(input - it->inputs) - 1;
  memmove(input, input + 1, behind * sizeof(*input));
  --it->input_count;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllInputs(TRITONSERVER_InferenceRequest* request)
{
  CHANGE();
  clear_inputs(it);
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputData(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id)
{
  CHANGE();
  REQUIRE(name);
  FIND_INPUT(input, name);
  if (base == NULL && byte_size > 0) {
    return INVALID("input '%s': argument 'base' is NULL, and its size %zu", name, byte_size);
  }
  if (!is_memory_type((int)memory_type)) {
    return INVALID("input '%s': unknown memory type '%d'", name, (int)memory_type);
  }
  if (memory_type == TRITONSERVER_MEMORY_GPU) {
    return fail(
        TRITONSERVER_ERROR_UNSUPPORTED, "input '%s' lies in the memory of GPU %lld; move it to the CPU", name,
        (long long)memory_type_id);
  }
  if (byte_size > INT64_MAX) {
    return INVALID("input '%s': not a size: %zu", name, byte_size);
  }
  if (!grow(&input->pieces, input->piece_count, sizeof(*input->pieces))) {
    return out_of_memory();
  }
  input->pieces[input->piece_count++] = (struct piece){base, byte_size};
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, const char* host_policy)
{
  REQUIRE(host_policy);
  return TRITONSERVER_InferenceRequestAppendInputData(request, name, base, byte_size, memory_type, memory_type_id);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base,
    TRITONSERVER_BufferAttributes* attributes)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, about, attributes);
  return TRITONSERVER_InferenceRequestAppendInputData(
      request, name, base, about->byte_size, (TRITONSERVER_MemoryType)about->memory_type, about->memory_type_id);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllInputData(
    TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  FIND_INPUT(input, name);
  clear_pieces(input);
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRequestedOutput(
    TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  for (size_t index = 0; index < it->output_count; ++index) {
    if (strcmp(it->outputs[index], name) == 0) {
      return NULL;
    }
  }
  char* copy = grow(&it->outputs, it->output_count, sizeof(*it->outputs)) ? strdup(name) : NULL;
  if (copy == NULL) {
    return out_of_memory();
  }
  it->outputs[it->output_count++] = copy;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveRequestedOutput(
    TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  for (size_t index = 0; index < it->output_count; ++index) {
    if (strcmp(it->outputs[index], name) == 0) {
      free(it->outputs[index]);
      memmove(&it->outputs[index], &it->outputs[index + 1], (--it->output_count - index) * sizeof(*it->outputs));
      return NULL;
    }
  }
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(TRITONSERVER_InferenceRequest* request)
{
  CHANGE();
  clear_outputs(it);
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetReleaseCallback(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceRequestReleaseFn_t release, void* userp)
{
  CHANGE();
  REQUIRE(release);
  it->release = release;
  it->release_userp = userp;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetResponseCallback(
    TRITONSERVER_InferenceRequest* request, TRITONSERVER_ResponseAllocator* allocator, void* allocator_userp,
    TRITONSERVER_InferenceResponseCompleteFn_t complete, void* userp)
{
  BORROW(KIND_ALLOCATOR, allocator, living, allocator);
  CHANGE();
  REQUIRE(complete);
  it->allocator = allocator;
  it->allocator_userp = allocator_userp;
  it->complete = complete;
  it->complete_userp = userp;
  return NULL;
}

static TRITONSERVER_Error* add_parameter(
    TRITONSERVER_InferenceRequest* request, const char* key, struct named_value value, const char* text)
{
  CHANGE();
  REQUIRE(key);
  for (size_t index = 0; index < it->parameter_count; ++index) {
    if (strcmp(it->parameters[index].name, key) == 0) {
      return fail(TRITONSERVER_ERROR_ALREADY_EXISTS, "request parameter '%s' already exists", key);
    }
  }
  value.name = grow(&it->parameters, it->parameter_count, sizeof(*it->parameters)) ? strdup(key) : NULL;
  value.text = text == NULL ? NULL : strdup(text);
  if (value.name == NULL || (text != NULL && value.text == NULL)) {
    free(value.name);
    free(value.text);
    return out_of_memory();
  }
  it->parameters[it->parameter_count++] = value;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetStringParameter(
    TRITONSERVER_InferenceRequest* request, const char* key, const char* value)
{
  REQUIRE(value);
  return add_parameter(request, key, (struct named_value){.type = TRITONSERVER_PARAMETER_STRING}, value);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetIntParameter(
    TRITONSERVER_InferenceRequest* request, const char* key, const int64_t value)
{
  struct named_value added = {.type = TRITONSERVER_PARAMETER_INT, .integer = value};
  return add_parameter(request, key, added, NULL);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetBoolParameter(
    TRITONSERVER_InferenceRequest* request, const char* key, const bool value)
{
  struct named_value added = {.type = TRITONSERVER_PARAMETER_BOOL, .integer = value};
  return add_parameter(request, key, added, NULL);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestSetDoubleParameter(
    TRITONSERVER_InferenceRequest* request, const char* key, const double value)
{
  struct named_value added = {.type = TRITONSERVER_PARAMETER_DOUBLE, .real = value};
  return add_parameter(request, key, added, NULL);
}
