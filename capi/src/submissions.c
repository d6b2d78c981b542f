// The way of a request: submitted, answered, given back.
#include <stdlib.h>
#include <string.h>

#include "inference.h"

_Thread_local int in_callback;

static void destroy_submission(void* object)
{
  struct submission* it = object;
  if (it->placed != NULL) {
    outputs_end(it);
  }
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
  const struct piece* pieces = input->own_count > 0 ? input->own_pieces : input->pieces;
  size_t count = input->own_count > 0 ? input->own_count : input->piece_count;
  if (count == 1) {
    whole->base = pieces[0].base;
    whole->byte_size = pieces[0].byte_size;
    return true;
  }
  size_t size = 0;
  for (size_t index = 0; index < count; ++index) {
    size += pieces[index].byte_size;
  }
  char* to = *joined = malloc(size + 1);
  if (to == NULL) {
    return false;
  }
  whole->base = to;
  whole->byte_size = size;
  for (size_t index = 0; index < count; ++index) {
    if (pieces[index].byte_size > 0) {
      memcpy(to, pieces[index].base, pieces[index].byte_size);
      to += pieces[index].byte_size;
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
  request->answered = false;
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
      .only_check = it->complete == NULL || request->release == NULL,
  };
  TRY(core->submit(&crossing));
  if (crossing.only_check) {
    return INVALID("the request has no %s callback", it->complete == NULL ? "response" : "release");
  }
  return NULL;
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

static void give_back(struct submission* it)
{
  struct request* request = it->request;
  TRITONSERVER_InferenceRequest* handle = request->object.handle;
  trace_let_go(it->trace);
  it->trace = NULL;
  pthread_mutex_lock(&request->lock);
  request->running = 0;
  bool doomed = request->doomed;
  TRITONSERVER_InferenceRequestReleaseFn_t release = request->release;
  void* userp = request->release_userp;
  pthread_mutex_unlock(&request->lock);
  handle_delete(it->object.handle, KIND_SUBMISSION);
  ++in_callback;
  release(handle, TRITONSERVER_REQUEST_RELEASE_ALL, userp);
  --in_callback;
  if (doomed) {
    handle_delete(handle, KIND_REQUEST);
  }
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
  TRITONSERVER_InferenceResponse* made = response == NULL ? NULL : response_of(it, response);
  if (final) {
    pthread_mutex_lock(&it->request->lock);
    it->request->answered = true;
    pthread_mutex_unlock(&it->request->lock);
  }
  if (made != NULL || final) {
    ++in_callback;
    it->complete(made, final ? TRITONSERVER_RESPONSE_COMPLETE_FINAL : 0, it->complete_userp);
    --in_callback;
  }
  if (final) {
    give_back(it);
  }
}
