// The table of all handles. A handle is a number in disguise: kind, place in the table, and generation. It is looked up,
// never dereferenced, so that NULL, a wrong type and a handle that was deleted are found out. Safe from any thread.
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum kind {
  KIND_ERROR = 1,
  KIND_PARAMETER,
  KIND_MESSAGE,
  KIND_METRICS,
  KIND_BUFFER_ATTRIBUTES,
  KIND_ALLOCATOR,
  KIND_OPTIONS,
  KIND_SERVER,
  KIND_REQUEST,
  KIND_RESPONSE,
  KIND_TRACE,
  KIND_FAMILY,
  KIND_METRIC,
  KIND_METRIC_ARGS,
  KIND_AGENT,
  KIND_AGENT_MODEL,
  KIND_SUBMISSION,
  KIND_TENSOR,
  KIND_API_SERVER,
  KIND_API_MODEL,
  KIND_API_REQUEST,
  KIND_API_AGENT,
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
