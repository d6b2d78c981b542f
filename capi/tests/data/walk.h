// What the program of walk.py uses: objects of every kind, right, deleted and wrong, over the stub table.
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub_core.h"
#include "triton/core/tritonrepoagent.h"

static int calls;
static uint64_t living;
static TRITONSERVER_InferenceResponse* answer;

static void nothing(void) {}

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType type, int64_t id,
    void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id)
{
  (void)allocator, (void)name, (void)id, (void)userp;
  *buffer = malloc(size + 1);
  *buffer_userp = NULL;
  *actual = type;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error* give_back(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* userp, size_t size, TRITONSERVER_MemoryType type,
    int64_t id)
{
  (void)allocator, (void)userp, (void)size, (void)type, (void)id;
  free(buffer);
  return NULL;
}

static void on_answer(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  (void)flags, (void)userp;
  answer = response;
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
  (void)request, (void)flags, (void)userp;
}

static void on_activity(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t at, void* userp)
{
  (void)trace, (void)activity, (void)at, (void)userp;
}

static void on_trace_release(TRITONSERVER_InferenceTrace* trace, void* userp)
{
  (void)userp;
  TRITONSERVER_ErrorDelete(TRITONSERVER_InferenceTraceDelete(trace));
}

static void must(TRITONSERVER_Error* error)
{
  if (error != NULL) {
    printf("cannot begin: %s\n", TRITONSERVER_ErrorMessage(error));
    exit(1);
  }
}

static void* make_TRITONSERVER_BufferAttributes(void)
{
  TRITONSERVER_BufferAttributes* it = NULL;
  must(TRITONSERVER_BufferAttributesNew(&it));
  return it;
}

static void* make_TRITONSERVER_Error(void)
{
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "an error");
}

static void* make_TRITONSERVER_Message(void)
{
  TRITONSERVER_Message* it = NULL;
  must(TRITONSERVER_MessageNewFromSerializedJson(&it, "{}", 2));
  return it;
}

static void* make_TRITONSERVER_MetricArgs(void)
{
  static const double buckets[] = {1};
  TRITONSERVER_MetricArgs* it = NULL;
  must(TRITONSERVER_MetricArgsNew(&it));
  must(TRITONSERVER_MetricArgsSetHistogram(it, buckets, 1));
  return it;
}

static void* make_TRITONSERVER_MetricFamily(void)
{
  TRITONSERVER_MetricFamily* it = NULL;
  must(TRITONSERVER_MetricFamilyNew(&it, TRITONSERVER_METRIC_KIND_GAUGE, "name", "text"));
  return it;
}

static TRITONSERVER_MetricFamily* shared_family;

static void* make_TRITONSERVER_Metric(void)
{
  TRITONSERVER_Metric* it = NULL;
  must(TRITONSERVER_MetricNew(&it, shared_family, NULL, 0));
  return it;
}

static TRITONSERVER_Server* shared_server;

static void* make_TRITONSERVER_Metrics(void)
{
  TRITONSERVER_Metrics* it = NULL;
  must(TRITONSERVER_ServerMetrics(shared_server, &it));
  return it;
}

static void* make_TRITONSERVER_Parameter(void)
{
  return TRITONSERVER_ParameterNew("name", TRITONSERVER_PARAMETER_STRING, "value");
}

static void* make_TRITONSERVER_ResponseAllocator(void)
{
  TRITONSERVER_ResponseAllocator* it = NULL;
  must(TRITONSERVER_ResponseAllocatorNew(&it, allocate, give_back, NULL));
  return it;
}

static void* make_TRITONSERVER_ServerOptions(void)
{
  TRITONSERVER_ServerOptions* it = NULL;
  must(TRITONSERVER_ServerOptionsNew(&it));
  return it;
}

static void* make_TRITONSERVER_Server(void)
{
  TRITONSERVER_ServerOptions* options = make_TRITONSERVER_ServerOptions();
  TRITONSERVER_Server* it = NULL;
  must(TRITONSERVER_ServerNew(&it, options));
  must(TRITONSERVER_ServerOptionsDelete(options));
  return it;
}

static TRITONSERVER_ResponseAllocator* shared_allocator;

static void* make_TRITONSERVER_InferenceRequest(void)
{
  static const float values[1] = {1};
  static const int64_t shape[1] = {1};
  TRITONSERVER_InferenceRequest* it = NULL;
  must(TRITONSERVER_InferenceRequestNew(&it, shared_server, "m", -1));
  must(TRITONSERVER_InferenceRequestAddInput(it, "x", TRITONSERVER_TYPE_FP32, shape, 1));
  must(TRITONSERVER_InferenceRequestAppendInputData(it, "x", values, 4, TRITONSERVER_MEMORY_CPU, 0));
  must(TRITONSERVER_InferenceRequestSetReleaseCallback(it, on_release, NULL));
  must(TRITONSERVER_InferenceRequestSetResponseCallback(it, shared_allocator, NULL, on_answer, NULL));
  return it;
}

static void* make_TRITONSERVER_InferenceResponse(void)
{
  TRITONSERVER_InferenceRequest* request = make_TRITONSERVER_InferenceRequest();
  must(TRITONSERVER_ServerInferAsync(shared_server, request, NULL));
  must(TRITONSERVER_InferenceRequestDelete(request));
  return answer;
}

static void* make_TRITONSERVER_InferenceTrace(void)
{
  TRITONSERVER_InferenceTrace* it = NULL;
  must(TRITONSERVER_InferenceTraceNew(&it, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS, 0, on_activity, on_trace_release, NULL));
  return it;
}

static void* make_TRITONREPOAGENT_Agent(void)
{
  void* it = NULL;
  must(repoagent_agent_open(getenv("AGENT"), &it));
  return it;
}

static void* make_TRITONREPOAGENT_AgentModel(void)
{
  core_parameter parameter = {"name", TRITONSERVER_PARAMETER_STRING, 0, 0, "value", 5};
  void* it = NULL;
  must(repoagent_model_open(1, &parameter, 1, &it));
  return it;
}

// Whatever it is, if it lives: one of these knows it.
static void remove_any(void* handle)
{
  TRITONSERVER_Error* const errors[] = {
      TRITONSERVER_BufferAttributesDelete(handle),   TRITONSERVER_MessageDelete(handle),
      TRITONSERVER_MetricArgsDelete(handle),         TRITONSERVER_MetricDelete(handle),
      TRITONSERVER_MetricFamilyDelete(handle),       TRITONSERVER_MetricsDelete(handle),
      TRITONSERVER_ResponseAllocatorDelete(handle),  TRITONSERVER_ServerOptionsDelete(handle),
      TRITONSERVER_InferenceRequestDelete(handle),   TRITONSERVER_InferenceResponseDelete(handle),
      TRITONSERVER_InferenceTraceDelete(handle),     TRITONSERVER_ServerDelete(handle),
  };
  for (size_t index = 0; index < sizeof(errors) / sizeof(*errors); ++index) {
    TRITONSERVER_ErrorDelete(errors[index]);
  }
  TRITONSERVER_ParameterDelete(handle);
  TRITONSERVER_ErrorDelete(handle);
  repoagent_agent_close(handle);
  repoagent_model_close(handle);
  if (answer != NULL) {
    TRITONSERVER_ErrorDelete(TRITONSERVER_InferenceResponseDelete(answer));
    answer = NULL;
  }
}

#define DELETED(kind)                \
  static void* deleted_##kind(void)  \
  {                                  \
    void* it = make_##kind();        \
    answer = NULL;                   \
    remove_any(it);                  \
    return it;                       \
  }

DELETED(TRITONSERVER_BufferAttributes)
DELETED(TRITONSERVER_Error)
DELETED(TRITONSERVER_InferenceRequest)
DELETED(TRITONSERVER_InferenceResponse)
DELETED(TRITONSERVER_InferenceTrace)
DELETED(TRITONSERVER_Message)
DELETED(TRITONSERVER_Metric)
DELETED(TRITONSERVER_MetricArgs)
DELETED(TRITONSERVER_MetricFamily)
DELETED(TRITONSERVER_Metrics)
DELETED(TRITONSERVER_Parameter)
DELETED(TRITONSERVER_ResponseAllocator)
DELETED(TRITONSERVER_Server)
DELETED(TRITONSERVER_ServerOptions)
DELETED(TRITONREPOAGENT_Agent)
DELETED(TRITONREPOAGENT_AgentModel)

static void check(TRITONSERVER_Error* error, int must_refuse, const char* call)
{
  if (must_refuse && error == NULL) {
    printf("accepted: %s\n", call);
  }
  if (error != NULL && TRITONSERVER_ErrorMessage(error) == NULL) {
    printf("returned what is not an error: %s\n", call);
  }
  TRITONSERVER_ErrorDelete(error);
}

// Of a function without an error: what it refuses, it answers with nothing.
static void returns(uintptr_t answer, int must_refuse, const char* call)
{
  if (must_refuse && answer != 0) {
    printf("answered: %s\n", call);
  }
}

static void left(const char* call)
{
  if (repoagent_living_handles() != living) {
    printf("left %d handles: %s\n", (int)(repoagent_living_handles() - living), call);
    living = repoagent_living_handles();
  }
}

static void begin(void)
{
  use_stub();
  shared_server = make_TRITONSERVER_Server();
  shared_allocator = make_TRITONSERVER_ResponseAllocator();
  shared_family = make_TRITONSERVER_MetricFamily();
  living = repoagent_living_handles();
}

static void end(void)
{
  remove_any(shared_server);
  remove_any(shared_allocator);
  remove_any(shared_family);
}
