/* An agent in C: a model is loaded only if it has the file that its parameter "file" names. */
#include <stdio.h>
#include <string.h>

#include "repoagent/agent.h"

static void check(repoagent_agent agent)
{
  const char *location, *file;
  char path[4096];
  if (repoagent_agent_get_parameter(agent, "file", &file) != REPOAGENT_NO_ERROR) {
    repoagent_agent_refuse(agent, "the agent 'readme' needs a parameter 'file'");
    return;
  }
  if (repoagent_agent_get_location(agent, &location) != REPOAGENT_NO_ERROR || strstr(file, "..") != NULL ||
      snprintf(path, sizeof(path), "%s/%s", location, file) >= (int)sizeof(path)) {
    repoagent_agent_refuse(agent, "the agent 'readme' cannot look for that file");
    return;
  }
  FILE* opened = fopen(path, "r");
  if (opened == NULL) {
    repoagent_agent_refuse(agent, "the model has no readme");
    return;
  }
  fclose(opened);
}

static void act(repoagent_agent agent, repoagent_action action)
{
  if (action == REPOAGENT_LOAD) {
    check(agent);
  }
}

REPOAGENT_AGENT(act)
