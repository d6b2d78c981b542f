// A request on its way and the memory of its outputs: what submissions.c, outputs.c and responses.c share.
#pragma once

#include "layer.h"

// Memory for one output: the allocator's, or ours where there is none. Its last user gives it back.
struct buffer {
  core_place place;  // first: Python has the address of it
  _Atomic int users;
  struct allocator* allocator;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  void* userp;
};

// What the allocator gave, or refused, before a model wrote that output.
struct placed {
  struct placed* next;
  char* name;
  struct buffer* buffer;
  TRITONSERVER_Error* error;
};

// A request on its way. It owns what must outlive the call that submitted it.
struct submission {
  struct object object;
  struct request* request;
  struct trace* trace;
  struct allocator* allocator;
  core_object server;
  void* allocator_userp;
  TRITONSERVER_InferenceResponseCompleteFn_t complete;
  void* complete_userp;
  core_input* inputs;
  core_parameter* parameters;
  void** joined;  // an input of several pieces, as one; NULL for the others
  size_t input_count;
  struct placed* placed;  // under the lock of the request
  atomic_bool started;    // the allocator knows of the response that comes next
};

// Let the allocator know that a response comes, once.
TRITONSERVER_Error* outputs_start(struct submission* of);

// `from` in memory of the program, without a copy where the model wrote there.
TRITONSERVER_Error* output_take(struct submission* of, const core_output* from, struct buffer** buffer);

// A response was made: what was placed for it and is not in it goes back.
void outputs_end(struct submission* of);

void buffer_let_go(struct buffer* buffer);

// A response with a handle; NULL where there is no memory for one.
TRITONSERVER_InferenceResponse* response_of(struct submission* of, const core_response* from);
