// Traces: what happened to a request, told to functions of the program.
#include <stdlib.h>
#include <string.h>

#include "layer.h"

#define TIMESTAMP_LEVELS (TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_MIN | TRITONSERVER_TRACE_LEVEL_MAX)

static _Atomic uint64_t last_id;

static void destroy(void* object)
{
  struct trace* trace = object;
  free(trace->model_name);
  free(trace->request_id);
  free(trace->context);
  free(trace);
}

static TRITONSERVER_Error* make(
    TRITONSERVER_InferenceTrace** trace, uint32_t level, uint64_t parent_id,
    TRITONSERVER_InferenceTraceActivityFn_t activity, TRITONSERVER_InferenceTraceTensorActivityFn_t tensor_activity,
    TRITONSERVER_InferenceTraceReleaseFn_t release, void* userp)
{
  struct trace* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  it->level = level;
  it->id = ++last_id;
  it->parent_id = parent_id;
  it->activity = activity;
  it->tensor_activity = tensor_activity;
  it->release = release;
  it->userp = userp;
  it->model_version = -1;
  return publish(KIND_TRACE, it, destroy, trace);
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceNew(
    TRITONSERVER_InferenceTrace** trace, TRITONSERVER_InferenceTraceLevel level, uint64_t parent_id,
    TRITONSERVER_InferenceTraceActivityFn_t activity, TRITONSERVER_InferenceTraceReleaseFn_t release, void* userp)
{
  REQUIRE(trace);
  REQUIRE(activity);
  REQUIRE(release);
  if (((uint32_t)level & TRITONSERVER_TRACE_LEVEL_TENSORS) != 0) {
    return INVALID("level TENSORS needs a function for tensors: use TRITONSERVER_InferenceTraceTensorNew");
  }
  return make(trace, (uint32_t)level, parent_id, activity, NULL, release, userp);
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceTensorNew(
    TRITONSERVER_InferenceTrace** trace, TRITONSERVER_InferenceTraceLevel level, uint64_t parent_id,
    TRITONSERVER_InferenceTraceActivityFn_t activity, TRITONSERVER_InferenceTraceTensorActivityFn_t tensor_activity,
    TRITONSERVER_InferenceTraceReleaseFn_t release, void* userp)
{
  REQUIRE(trace);
  REQUIRE(activity);
  REQUIRE(tensor_activity);
  REQUIRE(release);
  return make(trace, (uint32_t)level, parent_id, activity, tensor_activity, release, userp);
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceDelete(TRITONSERVER_InferenceTrace* trace)
{
  BORROW(KIND_TRACE, trace, it, trace);
  if (it->users > 0) {
    return INVALID("the trace belongs to the server until its release function is called");
  }
  return delete_handle(trace, KIND_TRACE);
}

static void report(struct trace* it, int activity, uint64_t timestamp_ns)
{
  if ((it->level & TIMESTAMP_LEVELS) != 0) {
    ++in_callback;
    it->activity(it->object.handle, (TRITONSERVER_InferenceTraceActivity)activity, timestamp_ns, it->userp);
    --in_callback;
  }
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceReportActivity(
    TRITONSERVER_InferenceTrace* trace, uint64_t timestamp_ns, const char* name)
{
  BORROW(KIND_TRACE, trace, it, trace);
  REQUIRE(name);
  TRY(set_text(&it->context, name));
  report(it, TRITONSERVER_TRACE_CUSTOM_ACTIVITY, timestamp_ns);
  return NULL;
}

#define GETTER(NAME, type, expression)                                                                       \
  TRITONSERVER_Error* TRITONSERVER_InferenceTrace##NAME(TRITONSERVER_InferenceTrace* trace, type* value)     \
  {                                                                                                          \
    BORROW(KIND_TRACE, trace, it, trace);                                                                    \
    REQUIRE(value);                                                                                          \
    *value = (expression);                                                                                   \
    return NULL;                                                                                             \
  }

GETTER(Id, uint64_t, it->id)
GETTER(ParentId, uint64_t, it->parent_id)
GETTER(ModelName, const char*, it->model_name == NULL ? "" : it->model_name)
GETTER(ModelVersion, int64_t, it->model_version)
GETTER(RequestId, const char*, it->request_id == NULL ? "" : it->request_id)
GETTER(Context, const char*, it->context == NULL ? "" : it->context)

TRITONSERVER_Error* TRITONSERVER_InferenceTraceSetContext(TRITONSERVER_InferenceTrace* trace, const char* context)
{
  BORROW(KIND_TRACE, trace, it, trace);
  REQUIRE(context);
  return set_text(&it->context, context);
}

static TRITONSERVER_Error* spawn(struct trace* it, TRITONSERVER_InferenceTrace** child)
{
  return make(child, it->level, it->id, it->activity, it->tensor_activity, it->release, it->userp);
}

TRITONSERVER_Error* TRITONSERVER_InferenceTraceSpawnChildTrace(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTrace** child)
{
  BORROW(KIND_TRACE, trace, it, trace);
  REQUIRE(child);
  return spawn(it, child);
}

TRITONSERVER_Error* trace_take(TRITONSERVER_InferenceTrace* handle, struct trace** trace)
{
  struct trace* it = handle_borrow(handle, KIND_TRACE);
  if (it == NULL) {
    return bad_handle(handle, KIND_TRACE);
  }
  int nobody = 0;
  if (!atomic_compare_exchange_strong(&it->users, &nobody, 1)) {
    handle_return(it);
    return INVALID("the trace follows another request already");
  }
  *trace = it;
  return NULL;
}

void trace_share(struct trace* it)
{
  if (it != NULL) {
    atomic_fetch_add(&it->users, 1);
  }
}

void trace_let_go(struct trace* it)
{
  if (it == NULL || atomic_fetch_sub(&it->users, 1) != 1) {
    return;
  }
  ++in_callback;
  it->release(it->object.handle, it->userp);
  --in_callback;
  handle_return(it);
}

#define FOLLOW(name, number)                                                                            \
  struct trace* name __attribute__((cleanup(return_borrowed))) =                                        \
      handle_borrow((const void*)(uintptr_t)(number), KIND_TRACE);                                      \
  if (name == NULL)

void repoagent_trace_begin(uint64_t trace, const char* model_name, int64_t model_version, const char* request_id)
{
  FOLLOW(it, trace)
  {
    return;
  }
  TRITONSERVER_ErrorDelete(set_text(&it->model_name, model_name));
  TRITONSERVER_ErrorDelete(set_text(&it->request_id, request_id));
  it->model_version = model_version;
}

void repoagent_trace_activity(uint64_t trace, int activity, uint64_t timestamp_ns)
{
  FOLLOW(it, trace)
  {
    return;
  }
  report(it, activity, timestamp_ns);
}

void repoagent_trace_tensor(uint64_t trace, int activity, const core_output* tensor)
{
  FOLLOW(it, trace)
  {
    return;
  }
  if (it->tensor_activity == NULL || (it->level & TRITONSERVER_TRACE_LEVEL_TENSORS) == 0) {
    return;
  }
  ++in_callback;
  it->tensor_activity(
      it->object.handle, (TRITONSERVER_InferenceTraceActivity)activity, tensor->name,
      (TRITONSERVER_DataType)tensor->datatype, tensor->base, tensor->byte_size, tensor->shape, tensor->dim_count,
      TRITONSERVER_MEMORY_CPU, 0, it->userp);
  --in_callback;
}

uint64_t repoagent_trace_child(uint64_t trace)
{
  FOLLOW(it, trace)
  {
    return 0;
  }
  TRITONSERVER_InferenceTrace* child = NULL;
  struct trace* taken;
  TRITONSERVER_Error* error = spawn(it, &child);
  if (error == NULL) {
    error = trace_take(child, &taken);
  }
  log_and_delete(error, "a child trace could not be made");
  return (uint64_t)(uintptr_t)child;
}

void repoagent_trace_end(uint64_t trace)
{
  FOLLOW(it, trace)
  {
    return;
  }
  trace_let_go(it);
}
