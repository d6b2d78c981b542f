// Requests, whose fields requests.c and inputs.c set. While a request runs it can only be read and cancelled.
#pragma once

#include "layer.h"

void request_unlock(void* request);

// `it`: the request, locked to the end of the function.
#define READ()                                                          \
  BORROW(KIND_REQUEST, request, it, request);                           \
  struct request* locked __attribute__((cleanup(request_unlock))) = it; \
  pthread_mutex_lock(&locked->lock)

#define CHANGE()                                                                              \
  READ();                                                                                     \
  if (it->running != 0) {                                                                     \
    return INVALID("the request belongs to the server until its release callback is called"); \
  }

void clear_inputs(struct request* it);
void clear_outputs(struct request* it);
