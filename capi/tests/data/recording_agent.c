// An agent that writes every call down, and fails or moves the model where the test says so. NAME is its name.
//
// Environment: TRACE the file for the calls, MARK what follows the calls of a model that begins now, FAILS the calls that
// fail, separated by commas.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonrepoagent.h"

static int is_listed(const char* call)
{
  const char* fails = getenv("FAILS");
  size_t size = strlen(call);
  for (const char* at = fails; at != NULL && (at = strstr(at, call)) != NULL; at += size) {
    if ((at == fails || at[-1] == ',') && (at[size] == ',' || at[size] == '\0')) {
      return 1;
    }
  }
  return 0;
}

static TRITONSERVER_Error* record(const char* what, const char* mark)
{
  char call[128];
  char reason[160];
  snprintf(call, sizeof(call), "%s %s%s", NAME, what, mark);
  FILE* trace = fopen(getenv("TRACE"), "a");
  if (trace != NULL) {
    fprintf(trace, "%s\n", call);
    fclose(trace);
  }
  if (!is_listed(call)) {
    return NULL;
  }
  snprintf(reason, sizeof(reason), "%s fails", call);
  return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, reason);
}

static const char* mark_of(TRITONREPOAGENT_AgentModel* model)
{
  void* mark = NULL;
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelState(model, &mark));
  return mark == NULL ? "?" : mark;
}

TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent)
{
  (void)agent;
  return record("Init", "");
}

TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent* agent)
{
  (void)agent;
  return record("Fini", "");
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
  (void)agent;
  const char* mark = getenv("MARK");
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelSetState(model, strdup(mark == NULL ? "" : mark)));
  return record("MInit", mark_of(model));
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
  (void)agent;
  void* mark = NULL;
  TRITONSERVER_Error* error = record("MFini", mark_of(model));
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelState(model, &mark));
  free(mark);
  return error;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action)
{
  static const char* const names[] = {"LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"};
  (void)agent;
  return record(names[action], mark_of(model));
}
