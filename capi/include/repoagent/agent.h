/* Agents in C: a shared library DIR/NAME/libtritonrepoagent_NAME.so that names its function once:

     static void act(repoagent_agent agent, repoagent_action action) { ... }
     REPOAGENT_AGENT(act)

   It runs in this server, in C programs and, as it has Triton's entry point, wherever native agents run that find these
   functions. */
#ifndef REPOAGENT_AGENT_H
#define REPOAGENT_AGENT_H

#include "repoagent/error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One call for one load of one model; it ends with the call. */
typedef struct repoagent_agent_handle* repoagent_agent;

typedef enum repoagent_action {
  REPOAGENT_LOAD = 0,
  REPOAGENT_LOAD_COMPLETE = 1,
  REPOAGENT_LOAD_FAIL = 2,
  REPOAGENT_UNLOAD = 3,
  REPOAGENT_UNLOAD_COMPLETE = 4
} repoagent_action;

typedef void (*repoagent_agent_function)(repoagent_agent agent, repoagent_action action);

/* Where the model is. Texts of these functions live as long as the model is loaded. */
REPOAGENT_API repoagent_error repoagent_agent_get_location(repoagent_agent agent, const char** location);

/* A parameter that the model's configuration, or the policy, gives this agent; NOT_FOUND if it has none of that name. */
REPOAGENT_API repoagent_error
repoagent_agent_get_parameter(repoagent_agent agent, const char* name, const char** value);

/* A private directory, the same one each time. */
REPOAGENT_API repoagent_error repoagent_agent_acquire_location(repoagent_agent agent, const char** location);

/* Let the agents that follow, and the server, use another directory. Only in LOAD. */
REPOAGENT_API repoagent_error repoagent_agent_update_location(repoagent_agent agent, const char* location);

/* Refuse the model, with a reason that operator and client read. The last reason counts. */
REPOAGENT_API repoagent_error repoagent_agent_refuse(repoagent_agent agent, const char* reason);

/* What the macro calls. */
REPOAGENT_API void* repoagent_agent_call(void* agent, void* model, int action, repoagent_agent_function function);

#define REPOAGENT_AGENT(function)                                                                    \
  REPOAGENT_API void* TRITONREPOAGENT_ModelAction(void* agent, void* model, const int action);       \
  void* TRITONREPOAGENT_ModelAction(void* agent, void* model, const int action)                      \
  {                                                                                                  \
    return repoagent_agent_call(agent, model, action, function);                                     \
  }

#ifdef __cplusplus
}
#endif
#endif
