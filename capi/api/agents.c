#include <stdlib.h>
#include <string.h>

#include "api.h"
#include "triton/core/tritonrepoagent.h"

struct api_agent {
  struct object object;
  void* agent;
  void* model;
  _Atomic(TRITONSERVER_Error*) refusal;
};

static void destroy(void* object)
{
  struct api_agent* it = object;
  TRITONSERVER_ErrorDelete(it->refusal);
  free(it);
}

void* repoagent_agent_call(void* agent, void* model, int action, repoagent_agent_function function)
{
  REQUIRE(function);
  struct api_agent* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  it->agent = agent;
  it->model = model;
  void* handle = NULL;
  TRY(publish(KIND_API_AGENT, it, destroy, &handle));
  function(handle, (repoagent_action)action);
  TRITONSERVER_Error* refusal = atomic_exchange(&it->refusal, NULL);
  handle_delete(handle, KIND_API_AGENT);
  return refusal;
}

repoagent_error repoagent_agent_get_location(repoagent_agent agent, const char** location)
{
  HOLD(KIND_API_AGENT, api_agent, it, agent);
  NEED(location);
  TRITONREPOAGENT_ArtifactType type;
  return settle(TRITONREPOAGENT_ModelRepositoryLocation(it->agent, it->model, &type, location));
}

repoagent_error repoagent_agent_get_parameter(repoagent_agent agent, const char* name, const char** value)
{
  HOLD(KIND_API_AGENT, api_agent, it, agent);
  NEED(name);
  NEED(value);
  uint32_t count = 0;
  const char* found = NULL;
  TRITONSERVER_Error* error = TRITONREPOAGENT_ModelParameterCount(it->agent, it->model, &count);
  for (uint32_t index = 0; error == NULL && index < count; ++index) {
    error = TRITONREPOAGENT_ModelParameter(it->agent, it->model, index, &found, value);
    if (error == NULL && strcmp(found, name) == 0) {
      return REPOAGENT_NO_ERROR;
    }
  }
  *value = NULL;
  return settle(
      error != NULL ? error : fail(TRITONSERVER_ERROR_NOT_FOUND, "the agent has no parameter '%s'", name));
}

repoagent_error repoagent_agent_acquire_location(repoagent_agent agent, const char** location)
{
  HOLD(KIND_API_AGENT, api_agent, it, agent);
  NEED(location);
  return settle(TRITONREPOAGENT_ModelRepositoryLocationAcquire(
      it->agent, it->model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, location));
}

repoagent_error repoagent_agent_update_location(repoagent_agent agent, const char* location)
{
  HOLD(KIND_API_AGENT, api_agent, it, agent);
  NEED(location);
  return settle(
      TRITONREPOAGENT_ModelRepositoryUpdate(it->agent, it->model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, location));
}

repoagent_error repoagent_agent_refuse(repoagent_agent agent, const char* reason)
{
  HOLD(KIND_API_AGENT, api_agent, it, agent);
  NEED(reason);
  TRITONSERVER_Error* refusal = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, reason);
  TRITONSERVER_ErrorDelete(atomic_exchange(&it->refusal, refusal));
  return REPOAGENT_NO_ERROR;
}
