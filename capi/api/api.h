// What the files of repoagent's own C API share. Not installed.
#pragma once

#include "layer.h"
#include "repoagent/capi.h"

// Keep the text of `error` for this thread, and delete it.
repoagent_error settle(TRITONSERVER_Error* error);

// As BORROW and REQUIRE, for functions that return a repoagent_error.
#define HOLD(kind, type, name, handle) BORROW_OR(settle, kind, type, name, handle)
#define NEED(argument) REQUIRE_OR(settle, argument)

// A new object with its handle, or NULL with the message kept.
void* created(enum kind kind, void* object, void (*destroy)(void*));

// Keep the JSON of `message` in `*field`.
TRITONSERVER_Error* keep_json(TRITONSERVER_Message* message, char** field);

struct tensor {
  struct object object;
  int type;
  int64_t* shape;
  uint64_t rank;
  void* data;
  size_t byte_size;
  char* name;    // of an output
  void* memory;  // a response that owns `data`; NULL: the tensor does
};

void tensor_destroy(void* object);

struct api_server {
  struct object object;
  pthread_mutex_t lock;
  TRITONSERVER_ServerOptions* options;
  TRITONSERVER_Server* server;
  char* metrics;
};

struct api_model {
  struct object object;
  struct api_server* server;
  char* name;
  int64_t version;
  char* metadata;
  char* report;
};
