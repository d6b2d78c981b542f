// The way of a request: submitted, answered, given back.
#include <stdlib.h>
#include <string.h>

#include "layer.h"

_Thread_local int in_callback;

// A request on its way. It owns what must outlive the call that submitted it.
struct submission {
  struct object object;
  struct request* request;
  struct trace* trace;
  struct allocator* allocator;
  core_object server;
  void* allocator_userp;
  TRITONSERVER_InferenceResponseCompleteFn_t complete;
  void* complete_userp;
  core_input* inputs;
  core_parameter* parameters;
  void** joined;  // an input of several pieces, as one; NULL for the others
  size_t input_count;
};

static void destroy_submission(void* object)
{
  struct submission* it = object;
  for (size_t index = 0; it->joined != NULL && index < it->input_count; ++index) {
    free(it->joined[index]);
  }
  free(it->joined);
  free(it->inputs);
  free(it->parameters);
  handle_return(it->allocator);
  handle_return(it->request);
  free(it);
}

static bool join(const struct input* input, core_input* whole, void** joined)
{
  if (input->piece_count == 1) {
    whole->base = input->pieces[0].base;
    whole->byte_size = input->pieces[0].byte_size;
    return true;
  }
  size_t size = 0;
  for (size_t index = 0; index < input->piece_count; ++index) {
    size += input->pieces[index].byte_size;
  }
  char* to = *joined = malloc(size + 1);
  if (to == NULL) {
    return false;
  }
  whole->base = to;
  whole->byte_size = size;
  for (size_t index = 0; index < input->piece_count; ++index) {
    if (input->pieces[index].byte_size > 0) {
      memcpy(to, input->pieces[index].base, input->pieces[index].byte_size);
      to += input->pieces[index].byte_size;
    }
  }
  return true;
}

static bool fill(struct submission* it, const struct request* request)
{
  it->inputs = calloc(request->input_count + 1, sizeof(*it->inputs));
  it->joined = calloc(request->input_count + 1, sizeof(*it->joined));
  it->parameters = calloc(request->parameter_count + 1, sizeof(*it->parameters));
  if (it->inputs == NULL || it->joined == NULL || it->parameters == NULL) {
    return false;
  }
  it->input_count = request->input_count;
  for (size_t index = 0; index < request->input_count; ++index) {
    const struct input* from = &request->inputs[index];
    core_input* to = &it->inputs[index];
    *to = (core_input){.name = from->name, .datatype = from->datatype, .shape = from->shape, .dim_count = from->dim_count};
    if (!join(from, to, &it->joined[index])) {
      return false;
    }
  }
  for (size_t index = 0; index < request->parameter_count; ++index) {
    const struct named_value* from = &request->parameters[index];
    it->parameters[index] = (core_parameter){
        from->name, from->type, from->integer, from->real, from->text, from->text == NULL ? 0 : strlen(from->text)};
  }
  return true;
}

// The submission of `request`, which is running from here on; with its lock held.
static TRITONSERVER_Error* begin(struct request* request, struct trace* trace, struct submission** submission)
{
  if (request->running != 0) {
    return INVALID("the request belongs to the server until its release callback is called");
  }
  if (request->complete == NULL || request->release == NULL) {
    return INVALID("the request has no %s callback", request->complete == NULL ? "response" : "release");
  }
  struct submission* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  it->request = handle_borrow(request->object.handle, KIND_REQUEST);
  it->allocator = request->allocator == NULL ? NULL : handle_borrow(request->allocator, KIND_ALLOCATOR);
  if (it->request == NULL || (request->allocator != NULL && it->allocator == NULL) || !fill(it, request)) {
    bool gone = request->allocator != NULL && it->allocator == NULL;
    destroy_submission(it);
    return gone ? INVALID("the allocator of the request was deleted") : out_of_memory();
  }
  it->trace = trace;
  it->server = request->server;
  it->allocator_userp = request->allocator_userp;
  it->complete = request->complete;
  it->complete_userp = request->complete_userp;
  void* handle;
  TRY(publish(KIND_SUBMISSION, it, destroy_submission, &handle));
  request->running = (uint64_t)(uintptr_t)handle;
  request->cancelled = false;
  *submission = it;
  return NULL;
}

static TRITONSERVER_Error* cross(const struct submission* it, uint64_t id, const struct request* request)
{
  CROSS(core);
  core_submission crossing = {
      .submission = id,
      .server = request->server,
      .model_name = request->model_name,
      .model_version = request->model_version,
      .id = request->id,
      .flags = request->flags,
      .correlation_text = request->correlation_text,
      .correlation_id = request->correlation_id,
      .priority = request->priority,
      .timeout_us = request->timeout_us,
      .inputs = it->inputs,
      .input_count = request->input_count,
      .outputs = (const char* const*)request->outputs,
      .output_count = request->output_count,
      .parameters = it->parameters,
      .parameter_count = request->parameter_count,
      .trace = it->trace == NULL ? 0 : (uint64_t)(uintptr_t)it->trace->object.handle,
      .trace_level = it->trace == NULL ? 0 : it->trace->level,
  };
  return core->submit(&crossing);
}

static TRITONSERVER_Error* submit(
    TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* handle, struct trace* trace)
{
  BORROW(KIND_SERVER, server, of, server);
  BORROW(KIND_REQUEST, request, request, handle);
  if (request->server != of->core) {
    return INVALID("the request was made for another server");
  }
  struct submission* made = NULL;
  pthread_mutex_lock(&request->lock);
  TRITONSERVER_Error* error = begin(request, trace, &made);
  uint64_t id = request->running;
  pthread_mutex_unlock(&request->lock);
  if (error != NULL) {
    return error;
  }
  // Kept: the answer may come, and end the submission, before the call returns.
  struct submission* it __attribute__((cleanup(return_borrowed))) =
      handle_borrow((const void*)(uintptr_t)id, KIND_SUBMISSION);
  error = cross(it, id, request);
  if (error != NULL && handle_delete((const void*)(uintptr_t)id, KIND_SUBMISSION)) {
    pthread_mutex_lock(&request->lock);
    request->running = 0;
    pthread_mutex_unlock(&request->lock);
  }
  return error;
}

TRITONSERVER_Error* TRITONSERVER_ServerInferAsync(
    TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceTrace* trace)
{
  struct trace* followed = NULL;
  if (trace != NULL) {
    TRY(trace_take(trace, &followed));
  }
  TRITONSERVER_Error* error = submit(server, request, followed);
  if (error != NULL) {
    trace_let_go(followed);
  }
  return error;
}

// --- responses -------------------------------------------------------------------------------------------------------

struct output {
  char* name;
  int datatype;
  int64_t* shape;
  uint64_t dim_count;
  void* buffer;
  size_t byte_size;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  void* userp;
  bool allocated;
};

// A label that was asked for; all of them stay to the end of the response.
struct label {
  struct label* next;
  core_text text;
};

struct response {
  struct object object;
  struct allocator* allocator;
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

static void release_output(struct allocator* allocator, struct output* output)
{
  if (output->allocated && allocator == NULL) {
    free(output->buffer);
  } else if (output->allocated) {
    ++in_callback;
    TRITONSERVER_Error* error = allocator->release(
        allocator->object.handle, output->buffer, output->userp, output->byte_size, output->memory_type,
        output->memory_type_id);
    --in_callback;
    log_and_delete(error, "the allocator could not release a buffer");
  }
  output->allocated = false;
}

static void destroy_response(void* object)
{
  struct response* it = object;
  for (uint32_t index = 0; index < it->output_count; ++index) {
    release_output(it->allocator, &it->outputs[index]);
    free(it->outputs[index].name);
    free(it->outputs[index].shape);
  }
  for (struct label *label = it->labels, *next; label != NULL; label = next) {
    next = label->next;
    free(label->text.text);
    free(label);
  }
  for (uint32_t index = 0; index < it->parameter_count; ++index) {
    free(it->parameters[index].name);
    free(it->parameters[index].text);
  }
  free(it->outputs);
  free(it->parameters);
  free(it->model_name);
  free(it->id);
  error_release(it->error);
  handle_return(it->allocator);
  trace_let_go(it->trace);
  free(it);
}

static TRITONSERVER_Error* ask_attributes(const struct submission* of, struct output* to)
{
  struct allocator* allocator = of->allocator;
  TRITONSERVER_BufferAttributes* attributes = NULL;
  TRY(TRITONSERVER_BufferAttributesNew(&attributes));
  struct buffer_attributes* it = handle_borrow(attributes, KIND_BUFFER_ATTRIBUTES);
  it->byte_size = to->byte_size;
  it->memory_type = (int)to->memory_type;
  it->memory_type_id = to->memory_type_id;
  ++in_callback;
  TRITONSERVER_Error* error =
      allocator->attributes(allocator->object.handle, to->name, attributes, of->allocator_userp, to->userp);
  --in_callback;
  to->memory_type = (TRITONSERVER_MemoryType)it->memory_type;
  to->memory_type_id = it->memory_type_id;
  handle_return(it);
  handle_delete(attributes, KIND_BUFFER_ATTRIBUTES);
  return error;
}

static TRITONSERVER_Error* allocate(const struct submission* of, struct output* to)
{
  struct allocator* allocator = of->allocator;
  to->memory_type = TRITONSERVER_MEMORY_CPU;
  if (allocator == NULL) {
    to->buffer = malloc(to->byte_size + 1);
    to->allocated = to->buffer != NULL;
    return to->allocated ? NULL : out_of_memory();
  }
  TRITONSERVER_MemoryType wanted = TRITONSERVER_MEMORY_CPU;
  int64_t wanted_id = 0;
  ++in_callback;
  if (allocator->query != NULL) {
    size_t size = to->byte_size;
    TRITONSERVER_Error* error =
        allocator->query(allocator->object.handle, of->allocator_userp, to->name, &size, &wanted, &wanted_id);
    log_and_delete(error, "the allocator did not answer a query");
    if (wanted == TRITONSERVER_MEMORY_GPU) {
      wanted = TRITONSERVER_MEMORY_CPU;
      wanted_id = 0;
    }
  }
  to->memory_type = wanted;
  to->memory_type_id = wanted_id;
  TRITONSERVER_Error* error = allocator->allocate(
      allocator->object.handle, to->name, to->byte_size, wanted, wanted_id, of->allocator_userp, &to->buffer, &to->userp,
      &to->memory_type, &to->memory_type_id);
  --in_callback;
  if (error != NULL) {
    return error;
  }
  to->allocated = true;
  if (allocator->attributes != NULL) {
    TRY(ask_attributes(of, to));
  }
  if (to->memory_type == TRITONSERVER_MEMORY_GPU) {
    return fail(TRITONSERVER_ERROR_UNSUPPORTED, "output '%s' cannot be put into the memory of a GPU", to->name);
  }
  if (to->buffer == NULL && to->byte_size > 0) {
    return fail(TRITONSERVER_ERROR_INTERNAL, "the allocator gave no buffer for output '%s'", to->name);
  }
  return NULL;
}

static TRITONSERVER_Error* copy_output(const struct submission* of, const core_output* from, struct output* to)
{
  to->name = strdup(from->name);
  to->shape = malloc((from->dim_count + 1) * sizeof(int64_t));
  if (to->name == NULL || to->shape == NULL) {
    return out_of_memory();
  }
  if (from->dim_count > 0) {
    memcpy(to->shape, from->shape, from->dim_count * sizeof(int64_t));
  }
  to->datatype = from->datatype;
  to->dim_count = from->dim_count;
  to->byte_size = from->byte_size;
  TRY(allocate(of, to));
  if (from->byte_size > 0) {
    memcpy(to->buffer, from->base, from->byte_size);
  }
  return NULL;
}

static TRITONSERVER_Error* copy_outputs(const struct submission* of, const core_response* from, struct response* to)
{
  if (of->allocator != NULL && of->allocator->start != NULL) {
    ++in_callback;
    TRITONSERVER_Error* error = of->allocator->start(of->allocator->object.handle, of->allocator_userp);
    --in_callback;
    TRY(error);
  }
  to->outputs = calloc(from->output_count + 1, sizeof(*to->outputs));
  if (to->outputs == NULL) {
    return out_of_memory();
  }
  for (uint64_t index = 0; index < from->output_count; ++index) {
    ++to->output_count;
    TRY(copy_output(of, &from->outputs[index], &to->outputs[index]));
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

// The response with a handle; NULL where there is no memory for one.
static TRITONSERVER_InferenceResponse* make_response(struct submission* of, const core_response* from)
{
  struct response* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    error_release(from->error);
    return NULL;
  }
  it->server = of->server;
  it->model_version = from->model_version;
  it->error = from->error;
  it->allocator = of->allocator == NULL ? NULL : handle_borrow(of->allocator->object.handle, KIND_ALLOCATOR);
  bool deleted = of->allocator != NULL && it->allocator == NULL;
  it->trace = of->trace;
  trace_share(it->trace);
  TRITONSERVER_Error* error = set_text(&it->model_name, from->model_name);
  error = error != NULL ? error : set_text(&it->id, from->id);
  error = error != NULL || from->error != NULL ? error : copy_parameters(from, it);
  if (error == NULL && it->error == NULL) {
    error = deleted ? INVALID("the allocator of the request was deleted") : copy_outputs(of, from, it);
  }
  if (error != NULL) {
    for (uint32_t index = 0; index < it->output_count; ++index) {
      release_output(it->allocator, &it->outputs[index]);
    }
    it->error = it->error != NULL ? it->error : error;
  }
  if (it->error != NULL) {
    error_keep(it->error);
  }
  TRITONSERVER_InferenceResponse* handle = NULL;
  TRITONSERVER_Error* unpublished = publish(KIND_RESPONSE, it, destroy_response, &handle);
  TRITONSERVER_ErrorDelete(unpublished);
  return handle;
}

static void give_back(struct submission* it)
{
  struct request* request = it->request;
  TRITONSERVER_InferenceRequest* handle = request->object.handle;
  trace_let_go(it->trace);
  it->trace = NULL;
  pthread_mutex_lock(&request->lock);
  request->running = 0;
  TRITONSERVER_InferenceRequestReleaseFn_t release = request->release;
  void* userp = request->release_userp;
  pthread_mutex_unlock(&request->lock);
  handle_delete(it->object.handle, KIND_SUBMISSION);
  ++in_callback;
  release(handle, TRITONSERVER_REQUEST_RELEASE_ALL, userp);
  --in_callback;
}

void repoagent_respond(uint64_t submission, const core_response* response, bool final)
{
  struct submission* it __attribute__((cleanup(return_borrowed))) =
      handle_borrow((const void*)(uintptr_t)submission, KIND_SUBMISSION);
  if (it == NULL) {
    if (response != NULL) {
      error_release(response->error);
    }
    return;
  }
  TRITONSERVER_InferenceResponse* made = response == NULL ? NULL : make_response(it, response);
  if (made != NULL || final) {
    ++in_callback;
    it->complete(made, final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, it->complete_userp);
    --in_callback;
  }
  if (final) {
    give_back(it);
  }
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
  *base = output->buffer;
  *byte_size = output->byte_size;
  *memory_type = output->memory_type;
  *memory_type_id = output->memory_type_id;
  *userp = output->userp;
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
