/* Servers. Every function may be called from any thread; those that start and stop block until that is done. */
#ifndef REPOAGENT_SERVER_H
#define REPOAGENT_SERVER_H

#include <stdbool.h>

#include "repoagent/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct repoagent_server_handle* repoagent_server;

/* A server that does not run yet. The first one starts a Python interpreter in this process. */
REPOAGENT_API repoagent_server repoagent_server_create(void);

/* Stops it if it runs. Not from within a callback. */
REPOAGENT_API repoagent_error repoagent_server_delete(repoagent_server server);

/* Before the start:
     repository       a directory or URL with models; may be set more than once
     control          "explicit" (the default: models are loaded by repoagent_model_load), "none" (all at the start), "poll"
     startup_model    a model to load at the start; may be set more than once
     agents           a directory of agents that are not installed: Python or native
     exit_timeout     seconds that a stop may take
     exit_on_error    "true" (the default) or "false": whether a model that fails fails the start
     strict_readiness "true" (the default) or "false"
     log_file         a path; empty is the standard error
     log_level        "none" (the default), "error", "warning", "info" or "verbose"; for all servers of the process */
REPOAGENT_API repoagent_error
repoagent_server_set_option(repoagent_server server, const char* name, const char* value);

REPOAGENT_API repoagent_error repoagent_server_start(repoagent_server server);
REPOAGENT_API repoagent_error repoagent_server_stop(repoagent_server server);
REPOAGENT_API repoagent_error repoagent_server_is_ready(repoagent_server server, bool* ready);

/* Metrics in the text format of Prometheus, valid until the next call for this server. */
REPOAGENT_API repoagent_error repoagent_server_get_metrics(repoagent_server server, const char** text);

#ifdef __cplusplus
}
#endif
#endif
