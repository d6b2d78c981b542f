// Requests of the small API on their way: submitted, answered, waited for, cancelled.
#include <stdlib.h>
#include <time.h>

#include "request.h"

TRITONSERVER_Error* request_runs(void)
{
  return INVALID("the request runs; wait for its last answer");
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

static void leave_inputs(struct api_request* it, size_t count)
{
  for (size_t index = 0; index < count; ++index) {
    tensor_leave(it->inputs[index].tensor);
  }
}

static TRITONSERVER_Error* use_inputs(struct api_request* it)
{
  for (size_t index = 0; index < it->input_count; ++index) {
    if (!tensor_use(it->inputs[index].tensor)) {
      leave_inputs(it, index);
      return INVALID("input '%s' is being changed", it->inputs[index].name);
    }
  }
  return NULL;
}

static void released(TRITONSERVER_InferenceRequest* inner, const uint32_t flags, void* userp)
{
  struct api_request* it = userp;
  (void)flags;
  pthread_mutex_lock(&it->lock);
  leave_inputs(it, it->input_count);
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

// What waits for a request that was not accepted, or asks for its outputs, gets the reason and not the answer before.
static void refused(struct api_request* it, TRITONSERVER_Error* error)
{
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_InferenceResponse* before = it->answer;
  TRITONSERVER_Error* error_before = it->error;
  it->answer = NULL;
  it->error = copy_error(error);
  it->sent = true;
  pthread_mutex_unlock(&it->lock);
  handle_delete(before, KIND_RESPONSE);
  TRITONSERVER_ErrorDelete(error_before);
}

// `busy`: it runs already, and this changed nothing.
static TRITONSERVER_Error* submit(struct api_request* it, bool* busy)
{
  TRITONSERVER_Server* server = it->model->server->server;
  TRITONSERVER_InferenceRequest* inner = NULL;
  TRY(TRITONSERVER_InferenceRequestNew(&inner, server, it->model->name, it->model->version));
  pthread_mutex_lock(&it->lock);
  *busy = it->running != NULL;
  TRITONSERVER_Error* error = *busy ? request_runs() : use_inputs(it);
  if (error == NULL) {
    error = fill(it, inner);
    if (error != NULL) {
      leave_inputs(it, it->input_count);
    }
  }
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
    if (it->running == inner) {
      leave_inputs(it, it->input_count);
      it->running = NULL;
    }
    pthread_mutex_unlock(&it->lock);
    handle_delete(inner, KIND_REQUEST);
    handle_return(kept);
  }
  return error;
}

repoagent_error repoagent_request_submit(repoagent_request request)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  bool busy = false;
  TRITONSERVER_Error* error = submit(it, &busy);
  if (error != NULL && !busy) {
    refused(it, error);
  }
  return settle(error);
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

// Without the lock, as the answer may come on this thread.
void request_cancel(struct api_request* it)
{
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_InferenceRequest* running = it->running;
  pthread_mutex_unlock(&it->lock);
  // It may be answered meanwhile, and its handle gone: then there is nothing to cancel.
  if (running != NULL) {
    TRITONSERVER_ErrorDelete(TRITONSERVER_InferenceRequestCancel(running));
  }
}

repoagent_error repoagent_request_cancel(repoagent_request request)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  request_cancel(it);
  return REPOAGENT_NO_ERROR;
}
