/* Requests to a model. One can be submitted again when it is answered; its inputs and parameters stay. */
#ifndef REPOAGENT_REQUEST_H
#define REPOAGENT_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "repoagent/error.h"
#include "repoagent/model.h"
#include "repoagent/tensor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct repoagent_request_handle* repoagent_request;

/* Called for each answer, on a thread of the server or the one that submitted. `error` is why there are no outputs; its
   message is repoagent_error_get_message. `final` is true once, with the last call. Within it, everything may be called
   but repoagent_request_wait, and stopping or deleting a server. */
typedef void (*repoagent_request_callback)(repoagent_request request, repoagent_error error, bool final, void* userp);

REPOAGENT_API repoagent_request repoagent_request_create(repoagent_model model);

/* Also while it runs: it is cancelled then, and its callback is not called any more. */
REPOAGENT_API repoagent_error repoagent_request_delete(repoagent_request request);

/* The tensor is kept as long as it is needed; do not write to it while the request runs. */
REPOAGENT_API repoagent_error
repoagent_request_set_input(repoagent_request request, const char* name, repoagent_tensor tensor);

/* A parameter of the request. The text of a whole number crosses as a number, "true" and "false" as truth values. */
REPOAGENT_API repoagent_error
repoagent_request_set_parameter(repoagent_request request, const char* name, const char* value);

REPOAGENT_API repoagent_error
repoagent_request_set_callback(repoagent_request request, repoagent_request_callback callback, void* userp);

/* Send it. An error here means that it was not sent, and the callback is not called. */
REPOAGENT_API repoagent_error repoagent_request_submit(repoagent_request request);

/* Wait for its last answer, and return the error of that. -1 waits forever; UNAVAILABLE after `milliseconds` without. */
REPOAGENT_API repoagent_error repoagent_request_wait(repoagent_request request, int64_t milliseconds);

REPOAGENT_API repoagent_error repoagent_request_cancel(repoagent_request request);

/* An output of the answer that came last, by name, or by index where `name` is NULL. The tensor is yours: delete it. It
   outlives the request. NOT_FOUND if there is none; the name belongs to the tensor. */
REPOAGENT_API repoagent_error repoagent_request_get_output(
    repoagent_request request, const char* name, uint64_t index, repoagent_tensor* tensor, const char** found);

#ifdef __cplusplus
}
#endif
#endif
