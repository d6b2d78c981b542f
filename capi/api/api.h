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

// A copy of the JSON of `message`, which is deleted.
TRITONSERVER_Error* take_json(TRITONSERVER_Message* message, char** text);

// Keep `text` in `*field`, in the place of what the call before this one showed, and show it.
void show(pthread_mutex_t* lock, char** field, char* text, const char** shown);

struct tensor {
  struct object object;
  int type;
  int64_t* shape;
  uint64_t rank;
  void* data;
  size_t byte_size;
  char* name;    // of an output
  void* memory;  // a response that owns `data`; NULL: the tensor does
  _Atomic int users;  // requests that run with it; -1 while it is changed
};

void tensor_destroy(void* object);

// Keep the memory of a tensor as it is, for a request that runs; false while it is changed.
bool tensor_use(struct tensor* it);
void tensor_leave(struct tensor* it);

struct api_server {
  struct object object;
  pthread_mutex_t lock;
  TRITONSERVER_ServerOptions* options;
  _Atomic(TRITONSERVER_Server*) server;
  char* metrics;
};

struct api_model {
  struct object object;
  pthread_mutex_t lock;  // for what is shown
  struct api_server* server;
  char* name;
  int64_t version;
  char* metadata;
  char* report;
};
