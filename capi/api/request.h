// A request of the small API: what requests.c, running.c and results.c share.
#pragma once

#include "api.h"

struct api_request {
  struct object object;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  struct api_model* model;
  struct kept_input {
    char* name;
    struct tensor* tensor;
  }* inputs;
  size_t input_count;
  struct named_value* parameters;
  size_t parameter_count;
  repoagent_request_callback callback;
  void* userp;
  TRITONSERVER_InferenceRequest* running;
  TRITONSERVER_InferenceResponse* answer;
  TRITONSERVER_Error* error;  // of the last answer
  bool sent;
};

// The error of what cannot be done while a request runs.
TRITONSERVER_Error* request_runs(void);
void request_cancel(struct api_request* it);
