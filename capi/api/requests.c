#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "api.h"

struct api_request {
  struct object object;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct api_model* model;
  struct kept_input {
    char* name;
    struct tensor* tensor;
  }* inputs;
  size_t input_count;
  struct named_value* parameters;
  size_t parameter_count;
  repoagent_request_callback callback;
  void* userp;
  TRITONSERVER_InferenceRequest* running;
  TRITONSERVER_InferenceResponse* answer;
  TRITONSERVER_Error* error;  // of the last answer
  bool sent;
};

static void destroy(void* object)
{
  struct api_request* it = object;
  for (size_t index = 0; index < it->input_count; ++index) {
    free(it->inputs[index].name);
    handle_return(it->inputs[index].tensor);
  }
  for (size_t index = 0; index < it->parameter_count; ++index) {
    free(it->parameters[index].name);
    free(it->parameters[index].text);
  }
  free(it->inputs);
  free(it->parameters);
  handle_delete(it->answer, KIND_RESPONSE);
  TRITONSERVER_ErrorDelete(it->error);
  handle_return(it->model);
  pthread_cond_destroy(&it->changed);
  pthread_mutex_destroy(&it->lock);
  free(it);
}

repoagent_request repoagent_request_create(repoagent_model model)
{
  struct api_model* of = handle_borrow(model, KIND_API_MODEL);
  if (of == NULL) {
    settle(bad_handle(model, KIND_API_MODEL));
    return NULL;
  }
  struct api_request* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    handle_return(of);
    return created(KIND_API_REQUEST, NULL, destroy);
  }
  pthread_condattr_t clock;
  pthread_condattr_init(&clock);
  pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
  pthread_mutex_init(&it->lock, NULL);
  pthread_cond_init(&it->changed, &clock);
  pthread_condattr_destroy(&clock);
  it->model = of;
  return created(KIND_API_REQUEST, it, destroy);
}

// Without the lock, as the answer may come on this thread.
static void cancel(struct api_request* it)
{
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_InferenceRequest* running = it->running;
  pthread_mutex_unlock(&it->lock);
  // It may be answered meanwhile, and its handle gone: then there is nothing to cancel.
  if (running != NULL) {
    TRITONSERVER_ErrorDelete(TRITONSERVER_InferenceRequestCancel(running));
  }
}

repoagent_error repoagent_request_delete(repoagent_request request)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  repoagent_error error = settle(delete_handle(request, KIND_API_REQUEST));
  cancel(it);
  return error;
}

static TRITONSERVER_Error* while_it_runs(void)
{
  return INVALID("the request runs; wait for its last answer");
}

static TRITONSERVER_Error* set_input(struct api_request* it, const char* name, struct tensor* tensor)
{
  if (it->running != NULL) {
    return while_it_runs();
  }
  for (size_t index = 0; index < it->input_count; ++index) {
    if (strcmp(it->inputs[index].name, name) == 0) {
      handle_return(it->inputs[index].tensor);
      it->inputs[index].tensor = handle_borrow(tensor->object.handle, KIND_TENSOR);
      return it->inputs[index].tensor != NULL ? NULL : INVALID("the tensor was deleted");
    }
  }
  struct kept_input* larger = realloc(it->inputs, (it->input_count + 1) * sizeof(*larger));
  char* copy = strdup(name);
  it->inputs = larger == NULL ? it->inputs : larger;
  struct tensor* kept = handle_borrow(tensor->object.handle, KIND_TENSOR);
  if (larger == NULL || copy == NULL || kept == NULL) {
    free(copy);
    handle_return(kept);
    return kept == NULL ? INVALID("the tensor was deleted") : out_of_memory();
  }
  it->inputs[it->input_count++] = (struct kept_input){copy, kept};
  return NULL;
}

repoagent_error repoagent_request_set_input(repoagent_request request, const char* name, repoagent_tensor tensor)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  HOLD(KIND_TENSOR, tensor, values, tensor);
  NEED(name);
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_Error* error = set_input(it, name, values);
  pthread_mutex_unlock(&it->lock);
  return settle(error);
}

static struct named_value read_value(const char* text)
{
  char* end = NULL;
  errno = 0;
  long long number = strtoll(text, &end, 10);
  bool digits = text[strspn(text, "-0123456789")] == '\0' && *text != '\0';
  if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
    return (struct named_value){.type = TRITONSERVER_PARAMETER_BOOL, .integer = *text == 't'};
  }
  if (digits && *end == '\0' && errno == 0) {
    return (struct named_value){.type = TRITONSERVER_PARAMETER_INT, .integer = number};
  }
  return (struct named_value){.type = TRITONSERVER_PARAMETER_STRING, .text = strdup(text)};
}

static TRITONSERVER_Error* set_parameter(struct api_request* it, const char* name, const char* text)
{
  if (it->running != NULL) {
    return while_it_runs();
  }
  struct named_value value = read_value(text);
  value.name = strdup(name);
  for (size_t index = 0; value.name != NULL && index < it->parameter_count; ++index) {
    if (strcmp(it->parameters[index].name, name) == 0) {
      free(it->parameters[index].name);
      free(it->parameters[index].text);
      it->parameters[index] = value;
      return NULL;
    }
  }
  struct named_value* larger = realloc(it->parameters, (it->parameter_count + 1) * sizeof(*larger));
  it->parameters = larger == NULL ? it->parameters : larger;
  if (larger == NULL || value.name == NULL) {
    free(value.name);
    free(value.text);
    return out_of_memory();
  }
  it->parameters[it->parameter_count++] = value;
  return NULL;
}

repoagent_error repoagent_request_set_parameter(repoagent_request request, const char* name, const char* value)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  NEED(name);
  NEED(value);
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_Error* error = set_parameter(it, name, value);
  pthread_mutex_unlock(&it->lock);
  return settle(error);
}

repoagent_error repoagent_request_set_callback(
    repoagent_request request, repoagent_request_callback callback, void* userp)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_Error* error = it->running != NULL ? while_it_runs() : NULL;
  if (error == NULL) {
    it->callback = callback;
    it->userp = userp;
  }
  pthread_mutex_unlock(&it->lock);
  return settle(error);
}

// A copy of the error of an answer, as that one belongs to the answer.
static TRITONSERVER_Error* copy_error(TRITONSERVER_Error* error)
{
  return error == NULL ? NULL : TRITONSERVER_ErrorNew(TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
}

static void complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  struct api_request* it = userp;
  TRITONSERVER_Error* failure = response == NULL ? NULL : copy_error(TRITONSERVER_InferenceResponseError(response));
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_InferenceResponse* before = it->answer;
  TRITONSERVER_Error* error_before = it->error;
  it->answer = response;
  it->error = failure;
  repoagent_request_callback callback = it->callback;
  void* callback_userp = it->userp;
  pthread_mutex_unlock(&it->lock);
  handle_delete(before, KIND_RESPONSE);
  TRITONSERVER_ErrorDelete(error_before);
  struct api_request* living = callback == NULL ? NULL : handle_borrow(it->object.handle, KIND_API_REQUEST);
  if (living != NULL) {
    bool final = (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
    callback(it->object.handle, settle(copy_error(failure)), final, callback_userp);
    handle_return(living);
  }
}

static void released(TRITONSERVER_InferenceRequest* inner, const uint32_t flags, void* userp)
{
  struct api_request* it = userp;
  (void)flags;
  pthread_mutex_lock(&it->lock);
  it->running = NULL;
  pthread_cond_broadcast(&it->changed);
  pthread_mutex_unlock(&it->lock);
  handle_delete(inner, KIND_REQUEST);
  handle_return(it);
}

static TRITONSERVER_Error* add(TRITONSERVER_InferenceRequest* inner, const struct named_value* value)
{
  switch (value->type) {
    case TRITONSERVER_PARAMETER_BOOL:
      return TRITONSERVER_InferenceRequestSetBoolParameter(inner, value->name, value->integer != 0);
    case TRITONSERVER_PARAMETER_INT:
      return TRITONSERVER_InferenceRequestSetIntParameter(inner, value->name, value->integer);
    default:
      return TRITONSERVER_InferenceRequestSetStringParameter(inner, value->name, value->text);
  }
}

static TRITONSERVER_Error* fill(struct api_request* it, TRITONSERVER_InferenceRequest* inner)
{
  for (size_t index = 0; index < it->input_count; ++index) {
    const char* name = it->inputs[index].name;
    const struct tensor* from = it->inputs[index].tensor;
    TRY(TRITONSERVER_InferenceRequestAddInput(
        inner, name, (TRITONSERVER_DataType)from->type, from->shape, from->rank));
    TRY(TRITONSERVER_InferenceRequestAppendInputData(
        inner, name, from->data, from->byte_size, TRITONSERVER_MEMORY_CPU, 0));
  }
  for (size_t index = 0; index < it->parameter_count; ++index) {
    TRY(add(inner, &it->parameters[index]));
  }
  BORROW(KIND_REQUEST, request, request, inner);
  // Without an allocator outputs are in memory of the response.
  request->complete = complete;
  request->complete_userp = it;
  request->release = released;
  request->release_userp = it;
  return NULL;
}

static TRITONSERVER_Error* submit(struct api_request* it)
{
  TRITONSERVER_Server* server = it->model->server->server;
  TRITONSERVER_InferenceRequest* inner = NULL;
  TRY(TRITONSERVER_InferenceRequestNew(&inner, server, it->model->name, it->model->version));
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_Error* error = it->running != NULL ? while_it_runs() : fill(it, inner);
  if (error == NULL) {
    it->running = inner;
    it->sent = true;
  }
  pthread_mutex_unlock(&it->lock);
  struct api_request* kept = error == NULL ? handle_borrow(it->object.handle, KIND_API_REQUEST) : NULL;
  if (error == NULL && kept == NULL) {
    error = bad_handle(it->object.handle, KIND_API_REQUEST);
  }
  error = error != NULL ? error : TRITONSERVER_ServerInferAsync(server, inner, NULL);
  if (error != NULL) {
    pthread_mutex_lock(&it->lock);
    it->running = it->running == inner ? NULL : it->running;
    pthread_mutex_unlock(&it->lock);
    handle_delete(inner, KIND_REQUEST);
    handle_return(kept);
  }
  return error;
}

repoagent_error repoagent_request_submit(repoagent_request request)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  return settle(submit(it));
}

// False where `milliseconds` were over before.
static bool wait_for_the_end(struct api_request* it, int64_t milliseconds)
{
  struct timespec until;
  clock_gettime(CLOCK_MONOTONIC, &until);
  until.tv_sec += (time_t)(milliseconds / 1000);
  until.tv_nsec += (long)(milliseconds % 1000) * 1000000;
  until.tv_sec += until.tv_nsec / 1000000000;
  until.tv_nsec %= 1000000000;
  int late = 0;
  while (it->running != NULL && late == 0) {
    late = milliseconds < 0 ? pthread_cond_wait(&it->changed, &it->lock)
                            : pthread_cond_timedwait(&it->changed, &it->lock, &until);
  }
  return it->running == NULL;
}

repoagent_error repoagent_request_wait(repoagent_request request, int64_t milliseconds)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  if (in_callback > 0) {
    return settle(fail(TRITONSERVER_ERROR_UNAVAILABLE, "a callback must not wait for a request"));
  }
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_Error* error = NULL;
  if (!it->sent) {
    error = INVALID("the request was not submitted");
  } else if (!wait_for_the_end(it, milliseconds)) {
    error = fail(TRITONSERVER_ERROR_UNAVAILABLE, "no last answer within %lld ms", (long long)milliseconds);
  } else {
    error = copy_error(it->error);
  }
  pthread_mutex_unlock(&it->lock);
  return settle(error);
}

repoagent_error repoagent_request_cancel(repoagent_request request)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  cancel(it);
  return REPOAGENT_NO_ERROR;
}

// Output number `index` of `answer` as a tensor over its memory; NULL with an error.
static TRITONSERVER_Error* output_at(TRITONSERVER_InferenceResponse* answer, uint32_t index, struct tensor* it)
{
  const char* name;
  const int64_t* shape;
  const void* base;
  TRITONSERVER_DataType type;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  void* userp;
  TRY(TRITONSERVER_InferenceResponseOutput(
      answer, index, &name, &type, &shape, &it->rank, &base, &it->byte_size, &memory_type, &memory_type_id, &userp));
  it->type = (int)type;
  it->data = (void*)(uintptr_t)base;
  it->shape = malloc((it->rank + 1) * sizeof(int64_t));
  if (it->shape == NULL) {
    return out_of_memory();
  }
  memcpy(it->shape, shape, it->rank * sizeof(int64_t));
  return set_text(&it->name, name);
}

static TRITONSERVER_Error* find_output(
    TRITONSERVER_InferenceResponse* answer, const char* name, uint64_t index, struct tensor* it)
{
  uint32_t count = 0;
  TRITONSERVER_Error* none = TRITONSERVER_InferenceResponseOutputCount(answer, &count);
  if (none != NULL) {
    TRITONSERVER_ErrorDelete(none);
    return fail(TRITONSERVER_ERROR_NOT_FOUND, "the request has no answer with outputs");
  }
  for (uint32_t place = 0; place < count; ++place) {
    if (name == NULL && place != index) {
      continue;
    }
    free(it->shape);
    it->shape = NULL;
    TRY(output_at(answer, place, it));
    if (name == NULL || strcmp(it->name, name) == 0) {
      return NULL;
    }
  }
  it->data = NULL;
  return name == NULL ? fail(TRITONSERVER_ERROR_NOT_FOUND, "the answer has %u outputs", count)
                      : fail(TRITONSERVER_ERROR_NOT_FOUND, "the answer has no output '%s'", name);
}

repoagent_error repoagent_request_get_output(
    repoagent_request request, const char* name, uint64_t index, repoagent_tensor* tensor, const char** found)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  NEED(tensor);
  struct tensor* output = calloc(1, sizeof(*output));
  if (output == NULL) {
    return settle(out_of_memory());
  }
  pthread_mutex_lock(&it->lock);
  output->memory = handle_borrow(it->answer, KIND_RESPONSE);
  TRITONSERVER_Error* error = find_output(it->answer, name, index, output);
  pthread_mutex_unlock(&it->lock);
  if (error != NULL) {
    tensor_destroy(output);
    return settle(error);
  }
  const char* kept = output->name;
  error = publish(KIND_TENSOR, output, tensor_destroy, tensor);
  if (error == NULL && found != NULL) {
    *found = kept;
  }
  return settle(error);
}
