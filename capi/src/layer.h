// What all files of the C layer share.
#pragma once

#include <pthread.h>
#include <stdatomic.h>

#include "core.h"
#include "handles.h"

// The table, with Python started where none is running yet; NULL with `*error` set if that failed.
const core* core_or_error(TRITONSERVER_Error** error);

#define CROSS(table)                                  \
  TRITONSERVER_Error* table##_error = NULL;           \
  const core* table = core_or_error(&table##_error);  \
  if (table == NULL) {                                \
    return table##_error;                             \
  }

// A new error; never NULL.
TRITONSERVER_Error* fail(TRITONSERVER_Error_Code code, const char* format, ...) __attribute__((format(printf, 2, 3)));
TRITONSERVER_Error* bad_handle(const void* handle, enum kind kind);
TRITONSERVER_Error* out_of_memory(void);

// "Not found"; NULL if there is no such code.
const char* code_text(int code);

// Log an error that nobody takes, and delete it.
void log_and_delete(TRITONSERVER_Error* error, const char* what);

// An error that a response keeps, which nobody else can delete.
void error_keep(TRITONSERVER_Error* error);
void error_release(TRITONSERVER_Error* error);

#define INVALID(...) fail(TRITONSERVER_ERROR_INVALID_ARG, __VA_ARGS__)

// `name`: the object behind `handle`, kept to the end of the function. Where there is none the function returns
// `refused(error)`, or the error itself without a `refused`.
void return_borrowed(void* object);
#define BORROW_OR(refused, kind, type, name, handle)                                                       \
  struct type* name __attribute__((cleanup(return_borrowed))) = handle_borrow((const void*)(handle), kind); \
  if (name == NULL) {                                                                                      \
    return refused(bad_handle((const void*)(handle), kind));                                               \
  }
#define BORROW(kind, type, name, handle) BORROW_OR(, kind, type, name, handle)

#define REQUIRE_OR(refused, argument)                            \
  if ((argument) == NULL) {                                      \
    return refused(INVALID("argument '" #argument "' is NULL")); \
  }
#define REQUIRE(argument) REQUIRE_OR(, argument)

// End the function with the error of `call`, if there is one.
#define TRY(call)                       \
  do {                                  \
    TRITONSERVER_Error* tried = (call); \
    if (tried != NULL) {                \
      return tried;                     \
    }                                   \
  } while (0)

// Give `object` its handle, in `*out`; frees the object where there is no memory for one.
TRITONSERVER_Error* publish(enum kind kind, void* object, void (*destroy)(void*), void* out);
TRITONSERVER_Error* delete_handle(const void* handle, enum kind kind);

// Replace `*field` by a copy of `text` (NULL: by nothing).
TRITONSERVER_Error* set_text(char** field, const char* text);

// A growing text; `failed` where memory ran out.
struct builder {
  char* text;
  size_t size;
  size_t room;
  bool failed;
};
void build(struct builder* builder, const char* bytes, size_t size);
void build_text(struct builder* builder, const char* text);
void build_json_string(struct builder* builder, const char* text);

// NULL, or why `text` is not JSON.
const char* json_fault(const char* text, size_t size);

bool is_memory_type(int type);
bool is_data_type(int type);

struct message {
  struct object object;
  core_text json;
};
// Takes `json` over.
TRITONSERVER_Error* message_of(core_text json, TRITONSERVER_Message** message);

struct parameter {
  struct object object;
  char* name;
  int type;
  int64_t integer;
  double real;
  char* text;         // STRING
  const void* bytes;  // BYTES: the caller's
  uint64_t byte_size;
};
// `count` parameters as the table takes them, which live as long as they are borrowed: to borrowed_delete.
struct borrowed {
  core_parameter* items;
  struct parameter** kept;
  uint64_t count;
};
TRITONSERVER_Error* borrow_parameters(const TRITONSERVER_Parameter** list, uint64_t count, struct borrowed* out);
void borrowed_delete(struct borrowed* borrowed);

struct options {
  struct object object;
  pthread_mutex_t lock;
  struct builder calls;
};

struct server {
  struct object object;
  core_object core;
};

struct buffer_attributes {
  struct object object;
  int memory_type;
  int64_t memory_type_id;
  size_t byte_size;
  bool has_ipc_handle;
  char ipc_handle[64];
};

struct allocator {
  struct object object;
  TRITONSERVER_ResponseAllocatorAllocFn_t allocate;
  TRITONSERVER_ResponseAllocatorReleaseFn_t release;
  TRITONSERVER_ResponseAllocatorStartFn_t start;
  TRITONSERVER_ResponseAllocatorBufferAttributesFn_t attributes;
  TRITONSERVER_ResponseAllocatorQueryFn_t query;
};

struct trace {
  struct object object;
  uint32_t level;
  uint64_t id;
  uint64_t parent_id;
  TRITONSERVER_InferenceTraceActivityFn_t activity;
  TRITONSERVER_InferenceTraceTensorActivityFn_t tensor_activity;
  TRITONSERVER_InferenceTraceReleaseFn_t release;
  void* userp;
  char* model_name;
  int64_t model_version;
  char* request_id;
  char* context;
  _Atomic int users;  // submission and responses; the last one gives the trace back
};
TRITONSERVER_Error* trace_take(TRITONSERVER_InferenceTrace* handle, struct trace** trace);
void trace_share(struct trace* trace);
void trace_let_go(struct trace* trace);

struct input {
  char* name;
  int datatype;
  int64_t* shape;
  uint64_t dim_count;
  struct piece {
    const void* base;
    size_t byte_size;
  }* pieces;
  size_t piece_count;
  struct piece* own_pieces;  // of the host policy of models on the CPU; they count instead of the others
  size_t own_count;
};

struct named_value {
  char* name;
  int type;
  int64_t integer;
  double real;
  char* text;
};
void free_values(struct named_value* values, size_t count);

// NULL: no memory.
int64_t* copy_shape(const int64_t* shape, uint64_t rank);

// `list` with room for one more item; false if there is none.
bool grow(void* list, size_t count, size_t size);

struct request {
  struct object object;
  pthread_mutex_t lock;
  core_object server;
  core_model model;
  char* model_name;
  int64_t model_version;
  char* id;
  uint32_t flags;
  uint64_t correlation_id;
  char* correlation_text;
  uint64_t priority;
  uint64_t timeout_us;
  struct input* inputs;
  size_t input_count;
  char** outputs;
  size_t output_count;
  struct named_value* parameters;
  size_t parameter_count;
  TRITONSERVER_InferenceRequestReleaseFn_t release;
  void* release_userp;
  TRITONSERVER_ResponseAllocator* allocator;
  void* allocator_userp;
  TRITONSERVER_InferenceResponseCompleteFn_t complete;
  void* complete_userp;
  uint64_t running;  // its submission, 0 while it is the caller's
  bool answered;     // its last answer is with the program, or about to be: it is only to be released
  bool doomed;       // deleted since then: it goes when it has been released
  bool cancelled;
};

// Whether this thread runs a callback of the program now.
extern _Thread_local int in_callback;
