/* Models of a server, by name. */
#ifndef REPOAGENT_MODEL_H
#define REPOAGENT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "repoagent/error.h"
#include "repoagent/server.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct repoagent_model_handle* repoagent_model;

/* A version of a model, -1 for the highest. It need not be loaded yet, or exist. */
REPOAGENT_API repoagent_model repoagent_model_create(repoagent_server server, const char* name, int64_t version);

/* Deletes the handle; the model stays loaded. */
REPOAGENT_API repoagent_error repoagent_model_delete(repoagent_model model);

/* Load it through its agents, or reload it if it changed; all versions that its policy chooses. */
REPOAGENT_API repoagent_error repoagent_model_load(repoagent_model model);

/* Take no new requests, and unload it when the last one has left; may return before that. */
REPOAGENT_API repoagent_error repoagent_model_unload(repoagent_model model);

REPOAGENT_API repoagent_error repoagent_model_is_ready(repoagent_model model, bool* ready);

/* Inputs and outputs as JSON, valid until the next call for this handle. */
REPOAGENT_API repoagent_error repoagent_model_get_metadata(repoagent_model model, const char** json);

/* What each agent did in the last load that was tried, as JSON, valid until the next call; "null" if none was. */
REPOAGENT_API repoagent_error repoagent_model_get_report(repoagent_model model, const char** json);

#ifdef __cplusplus
}
#endif
#endif
