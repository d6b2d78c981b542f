// The table of all handles. A handle is a number in disguise: kind, place in the table, and generation. It is looked up,
// never dereferenced, so that NULL, a wrong type and a handle that was deleted are found out. Safe from any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

// Every kind of handle, and its name in error texts.
#define KINDS(X)                                        \
  X(ERROR, "TRITONSERVER_Error")                        \
  X(PARAMETER, "TRITONSERVER_Parameter")                \
  X(MESSAGE, "TRITONSERVER_Message")                    \
  X(METRICS, "TRITONSERVER_Metrics")                    \
  X(BUFFER_ATTRIBUTES, "TRITONSERVER_BufferAttributes") \
  X(ALLOCATOR, "TRITONSERVER_ResponseAllocator")        \
  X(OPTIONS, "TRITONSERVER_ServerOptions")              \
  X(SERVER, "TRITONSERVER_Server")                      \
  X(REQUEST, "TRITONSERVER_InferenceRequest")           \
  X(RESPONSE, "TRITONSERVER_InferenceResponse")         \
  X(TRACE, "TRITONSERVER_InferenceTrace")               \
  X(FAMILY, "TRITONSERVER_MetricFamily")                \
  X(METRIC, "TRITONSERVER_Metric")                      \
  X(METRIC_ARGS, "TRITONSERVER_MetricArgs")             \
  X(AGENT, "TRITONREPOAGENT_Agent")                     \
  X(AGENT_MODEL, "TRITONREPOAGENT_AgentModel")          \
  X(SUBMISSION, "submission")                           \
  X(TENSOR, "repoagent_tensor")                         \
  X(API_SERVER, "repoagent_server")                     \
  X(API_MODEL, "repoagent_model")                       \
  X(API_REQUEST, "repoagent_request")                   \
  X(API_AGENT, "repoagent_agent")

enum kind {
  KIND_NONE,
#define KIND(name, text) KIND_##name,
  KINDS(KIND)
#undef KIND
};

// What every object begins with. `destroy` frees the object; it runs when the handle is deleted and nobody borrows it.
struct object {
  void (*destroy)(void* object);
  void* handle;
};

// Give `object` a handle. NULL: no memory, and the object is still the caller's.
void* handle_new(enum kind kind, void* object, void (*destroy)(void* object));

// The object behind a handle, kept until handle_return; NULL if the handle is not a living one of `kind`.
void* handle_borrow(const void* handle, enum kind kind);
void handle_return(void* object);

// End a handle. False if it is not a living one of `kind`.
bool handle_delete(const void* handle, enum kind kind);

// "a TRITONSERVER_Message", for error texts.
const char* kind_name(enum kind kind);

// How many handles live now; for tests.
__attribute__((__visibility__("default"))) uint64_t repoagent_living_handles(void);
