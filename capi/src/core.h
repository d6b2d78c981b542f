// Everything that the C layer asks of Python: one table. repoagent_capi/crossing.py fills it; tests fill it with a stub.
//
// What lives in Python is named by numbers that Python gives out, never by pointers. Every function returns an error that
// is the caller's, or NULL. Texts and arrays that go in live until the call returns; texts that come out are copied by
// repoagent_text_set. A crossing costs about a microsecond.
#pragma once

#include "triton/core/tritonserver.h"

typedef uint64_t core_object;

typedef struct core_text {
  char* text;
  size_t byte_size;
} core_text;

// The value is in the field of its type; BOOL is in `integer`, STRING and BYTES in `bytes`.
typedef struct core_parameter {
  const char* name;
  int type;
  int64_t integer;
  double real;
  const void* bytes;
  uint64_t byte_size;
} core_parameter;

// What a request needs to know of its model.
typedef struct core_model {
  uint64_t priority_levels;
  uint64_t default_priority;
} core_model;

typedef struct core_input {
  const char* name;
  int datatype;  // INVALID: a raw input, whose type and shape are the model's
  const int64_t* shape;
  uint64_t dim_count;
  const void* base;
  uint64_t byte_size;
} core_input;

typedef struct core_submission {
  uint64_t submission;  // what repoagent_respond takes
  core_object server;
  const char* model_name;
  int64_t model_version;
  const char* id;
  uint32_t flags;
  const char* correlation_text;  // NULL: it is the number
  uint64_t correlation_id;
  uint64_t priority;
  uint64_t timeout_us;
  const core_input* inputs;
  uint64_t input_count;
  const char* const* outputs;
  uint64_t output_count;
  const core_parameter* parameters;
  uint64_t parameter_count;
  uint64_t trace;  // what repoagent_trace_* takes, 0 for none
  uint32_t trace_level;
  bool only_check;  // refuse what would be refused, and go no further
} core_submission;

typedef struct core_output {
  const char* name;
  int datatype;
  const int64_t* shape;
  uint64_t dim_count;
  const void* base;
  uint64_t byte_size;
} core_output;

typedef struct core_response {
  const char* model_name;
  int64_t model_version;
  const char* id;
  TRITONSERVER_Error* error;  // taken over; with one there are no outputs
  const core_output* outputs;
  uint64_t output_count;
  const core_parameter* parameters;
  uint64_t parameter_count;
} core_response;

// Memory of the program for an output that a model is about to write.
typedef struct core_place {
  void* base;
  uint64_t byte_size;
} core_place;

typedef enum core_document {
  CORE_SERVER_METADATA,
  CORE_MODEL_METADATA,
  CORE_MODEL_STATISTICS,
  CORE_MODEL_CONFIG,  // number: the version of the form
  CORE_MODEL_INDEX,   // number: flags
  CORE_METRICS,
  CORE_LOAD_REPORT
} core_document;

typedef enum core_question { CORE_LIVE, CORE_READY } core_question;
typedef enum core_property { CORE_BATCH, CORE_TRANSACTION } core_property;
typedef enum core_change { CORE_INCREMENT, CORE_SET, CORE_OBSERVE } core_change;

typedef struct core {
  // Servers. `options` is a JSON list of calls: [["set_server_id", "x"], ...].
  TRITONSERVER_Error* (*server_new)(const char* options, size_t byte_size, core_object* server);
  TRITONSERVER_Error* (*server_stop)(core_object server);
  TRITONSERVER_Error* (*server_delete)(core_object server);
  TRITONSERVER_Error* (*server_set_exit_timeout)(core_object server, uint32_t seconds);
  TRITONSERVER_Error* (*server_is)(core_object server, int question, bool* answer);
  TRITONSERVER_Error* (*document)(
      core_object server, int which, const char* name, int64_t version, uint32_t number, core_text* text);
  TRITONSERVER_Error* (*repository_register)(
      core_object server, const char* path, const core_parameter* mapping, uint64_t count);
  TRITONSERVER_Error* (*repository_unregister)(core_object server, const char* path);
  TRITONSERVER_Error* (*repository_poll)(core_object server);
  TRITONSERVER_Error* (*model_load)(
      core_object server, const char* name, const core_parameter* parameters, uint64_t count);
  TRITONSERVER_Error* (*model_unload)(core_object server, const char* name, bool dependents);
  TRITONSERVER_Error* (*model_is_ready)(core_object server, const char* name, int64_t version, bool* ready);
  TRITONSERVER_Error* (*model_property)(
      core_object server, const char* name, int64_t version, int property, uint32_t* value);
  TRITONSERVER_Error* (*model_label)(
      core_object server, const char* name, int64_t version, const char* output, uint64_t index, core_text* label);
  // Requests. `submit` answers through repoagent_respond, perhaps before it returns; never after it returned an error.
  TRITONSERVER_Error* (*model_find)(core_object server, const char* name, int64_t version, core_model* model);
  TRITONSERVER_Error* (*submit)(const core_submission* submission);
  TRITONSERVER_Error* (*cancel)(uint64_t submission);
  // Metrics.
  TRITONSERVER_Error* (*family_new)(int kind, const char* name, const char* description, core_object* family);
  TRITONSERVER_Error* (*metric_new)(
      core_object family, const core_parameter* labels, uint64_t count, const double* buckets, uint64_t bucket_count,
      core_object* metric);
  TRITONSERVER_Error* (*metric_value)(core_object metric, double* value);
  TRITONSERVER_Error* (*metric_change)(core_object metric, int change, double value);
  TRITONSERVER_Error* (*object_delete)(core_object family_or_metric);
  // The log.
  TRITONSERVER_Error* (*log_message)(int level, const char* file, int line, const char* text);
  TRITONSERVER_Error* (*log_is_enabled)(int level, bool* enabled);
  TRITONSERVER_Error* (*log_set)(const char* setting, const char* text, int64_t number);
  // What a native agent asks about the model that it is called for.
  TRITONSERVER_Error* (*agent_location)(core_object model, int* type, core_text* location);
  TRITONSERVER_Error* (*agent_acquire)(core_object model, core_text* location);
  TRITONSERVER_Error* (*agent_release)(core_object model);
  TRITONSERVER_Error* (*agent_update)(core_object model, int type, const char* location);
  TRITONSERVER_Error* (*agent_config)(core_object model, core_text* json);
  // Stop every server that still runs.
  TRITONSERVER_Error* (*shutdown)(void);
} core;

// What the other side calls.

#ifndef CROSSED
#define CROSSED
#endif
typedef void (*crossed_function)(void);

// From now on `table` is what the layer asks. The last one counts; NULL takes it away. Returns the functions below that
// are CROSSED, in the order of the list in core.c: only this one is exported.
TRITONSERVER_DECLSPEC crossed_function const* repoagent_core_install(const core* table);

CROSSED void repoagent_text_set(core_text* text, const char* bytes, size_t byte_size);

// One response; `response` NULL with `final` is an empty end. Runs the callbacks of the program on this thread.
CROSSED void repoagent_respond(uint64_t submission, const core_response* response, bool final);

// Where the program wants that output of a running request; NULL: have it made elsewhere, and answer with it as always.
// Ask once for an output. repoagent_place_return gives it back when nothing writes or reads there any more.
CROSSED const core_place* repoagent_place(uint64_t submission, const char* name, uint64_t byte_size);
CROSSED void repoagent_place_return(const core_place* place);

// How many outputs were copied into memory of the program; for tests.
TRITONSERVER_DECLSPEC uint64_t repoagent_copied_outputs(void);

// A trace: the version that took the request, the moments and tensors of it, a trace for a request that is made for it,
// and the end of such a one, which gives it back to the program.
CROSSED void repoagent_trace_begin(
    uint64_t trace, const char* model_name, int64_t model_version, const char* request_id);
CROSSED void repoagent_trace_activity(uint64_t trace, int activity, uint64_t timestamp_ns);
CROSSED void repoagent_trace_tensor(uint64_t trace, int activity, const core_output* tensor);
CROSSED uint64_t repoagent_trace_child(uint64_t trace);
CROSSED void repoagent_trace_end(uint64_t trace);

// Native agents. Open loads the library; both handles are deleted by their close functions.
CROSSED TRITONSERVER_Error* repoagent_agent_open(const char* path, void** agent);
CROSSED void repoagent_agent_close(void* agent);
CROSSED TRITONSERVER_Error* repoagent_agent_initialize(void* agent);
CROSSED TRITONSERVER_Error* repoagent_agent_finalize(void* agent);
CROSSED TRITONSERVER_Error* repoagent_model_open(
    core_object model, const core_parameter* parameters, uint64_t count, void** handle);
CROSSED void repoagent_model_close(void* model);
CROSSED TRITONSERVER_Error* repoagent_model_initialize(void* agent, void* model);
CROSSED TRITONSERVER_Error* repoagent_model_finalize(void* agent, void* model);
CROSSED TRITONSERVER_Error* repoagent_model_action(void* agent, void* model, int action);
