// Requests: made, their fields, callbacks and parameters. While a request runs it can only be read and cancelled.
#include <stdlib.h>
#include <string.h>

#include "requests.h"

void request_unlock(void* request)
{
  struct request* it = *(struct request**)request;
  if (it != NULL) {
    pthread_mutex_unlock(&it->lock);
  }
}

static void destroy(void* object)
{
  struct request* it = object;
  clear_inputs(it);
  clear_outputs(it);
  free(it->inputs);
  free(it->outputs);
  free_values(it->parameters, it->parameter_count);
  free(it->model_name);
  free(it->id);
  free(it->correlation_text);
  pthread_mutex_destroy(&it->lock);
  free(it);
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
  READ();
  if (it->running == 0) {
    return delete_handle(request, KIND_REQUEST);
  }
  if (!it->answered) {
    return INVALID("the request belongs to the server until its last response has come");
  }
  if (it->doomed) {
    return INVALID("the request was deleted");
  }
  it->doomed = true;
  return NULL;
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
