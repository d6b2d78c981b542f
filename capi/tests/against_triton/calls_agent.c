// An agent that appends each action to the file $CALLS, sleeps in one and fails one, as its parameters tell.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "triton/core/tritonrepoagent.h"

static const char* const names[] = {"LOAD", "LOAD_COMPLETE", "LOAD_FAIL", "UNLOAD", "UNLOAD_COMPLETE"};

TRITONREPOAGENT_DECLSPEC TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action)
{
  FILE* calls = fopen(getenv("CALLS"), "a");
  fprintf(calls, "%s\n", names[action]);
  fclose(calls);
  uint32_t count = 0;
  TRITONREPOAGENT_ModelParameterCount(agent, model, &count);
  for (uint32_t i = 0; i < count; ++i) {
    const char *key, *value;
    TRITONREPOAGENT_ModelParameter(agent, model, i, &key, &value);
    if (strcmp(value, names[action]) != 0) continue;
    if (strcmp(key, "sleep") == 0) sleep(2);
    if (strcmp(key, "fail") == 0) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "told to fail");
  }
  return NULL;
}
