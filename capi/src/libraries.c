// The libraries of native agents: opened, asked for their entry points, called, closed.
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "agents.h"

static void destroy(void* object)
{
  struct agent* it = object;
  if (it->library != NULL) {
    dlclose(it->library);
  }
  free(it);
}

static const char* last_fault(void)
{
  const char* fault = dlerror();
  return fault == NULL ? "unknown" : fault;
}

// An optional entry point is NULL where the library does not have it.
static void find(void* library, const char* name, void* function)
{
  void* found = dlsym(library, name);
  memcpy(function, &found, sizeof(found));
}

static TRITONSERVER_Error* open_library(struct agent* it, const char* path)
{
  it->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (it->library == NULL) {
    return fail(TRITONSERVER_ERROR_NOT_FOUND, "unable to load shared library: %s", last_fault());
  }
  find(it->library, "TRITONREPOAGENT_Initialize", &it->initialize);
  find(it->library, "TRITONREPOAGENT_Finalize", &it->finalize);
  find(it->library, "TRITONREPOAGENT_ModelInitialize", &it->model_initialize);
  find(it->library, "TRITONREPOAGENT_ModelFinalize", &it->model_finalize);
  dlerror();
  find(it->library, "TRITONREPOAGENT_ModelAction", &it->model_action);
  if (it->model_action == NULL) {
    return fail(
        TRITONSERVER_ERROR_NOT_FOUND,
        "unable to find required entrypoint 'TRITONREPOAGENT_ModelAction' in shared library: %s", last_fault());
  }
  return NULL;
}

TRITONSERVER_Error* repoagent_agent_open(const char* path, void** agent)
{
  struct agent* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  TRITONSERVER_Error* error = open_library(it, path);
  if (error != NULL) {
    destroy(it);
    return error;
  }
  return publish(KIND_AGENT, it, destroy, agent);
}

void repoagent_agent_close(void* agent)
{
  handle_delete(agent, KIND_AGENT);
}

TRITONSERVER_Error* repoagent_agent_initialize(void* agent)
{
  BORROW(KIND_AGENT, agent, it, agent);
  return it->initialize == NULL ? NULL : it->initialize(agent);
}

TRITONSERVER_Error* repoagent_agent_finalize(void* agent)
{
  BORROW(KIND_AGENT, agent, it, agent);
  return it->finalize == NULL ? NULL : it->finalize(agent);
}

TRITONSERVER_Error* repoagent_model_initialize(void* agent, void* model)
{
  BORROW(KIND_AGENT, agent, it, agent);
  return it->model_initialize == NULL ? NULL : it->model_initialize(agent, model);
}

TRITONSERVER_Error* repoagent_model_finalize(void* agent, void* model)
{
  BORROW(KIND_AGENT, agent, it, agent);
  return it->model_finalize == NULL ? NULL : it->model_finalize(agent, model);
}

TRITONSERVER_Error* repoagent_model_action(void* agent, void* model, int action)
{
  BORROW(KIND_AGENT, agent, it, agent);
  return it->model_action(agent, model, (TRITONREPOAGENT_ActionType)action);
}
