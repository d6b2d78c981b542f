// Requests of the small API: made, their inputs and parameters.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "request.h"

static void destroy(void* object)
{
  struct api_request* it = object;
  for (size_t index = 0; index < it->input_count; ++index) {
    free(it->inputs[index].name);
    handle_return(it->inputs[index].tensor);
  }
  free(it->inputs);
  free_values(it->parameters, it->parameter_count);
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

repoagent_error repoagent_request_delete(repoagent_request request)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  repoagent_error error = settle(delete_handle(request, KIND_API_REQUEST));
  request_cancel(it);
  return error;
}

static TRITONSERVER_Error* set_input(struct api_request* it, const char* name, struct tensor* tensor)
{
  if (it->running != NULL) {
    return request_runs();
  }
  struct tensor* kept = handle_borrow(tensor->object.handle, KIND_TENSOR);
  if (kept == NULL) {
    return INVALID("the tensor was deleted");
  }
  for (size_t index = 0; index < it->input_count; ++index) {
    if (strcmp(it->inputs[index].name, name) == 0) {
      handle_return(it->inputs[index].tensor);
      it->inputs[index].tensor = kept;
      return NULL;
    }
  }
  char* copy = grow(&it->inputs, it->input_count, sizeof(*it->inputs)) ? strdup(name) : NULL;
  if (copy == NULL) {
    handle_return(kept);
    return out_of_memory();
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
    return request_runs();
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
  if (value.name == NULL || !grow(&it->parameters, it->parameter_count, sizeof(*it->parameters))) {
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
  TRITONSERVER_Error* error = it->running != NULL ? request_runs() : NULL;
  if (error == NULL) {
    it->callback = callback;
    it->userp = userp;
  }
  pthread_mutex_unlock(&it->lock);
  return settle(error);
}
