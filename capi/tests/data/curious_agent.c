// An agent that uses every function of the server, and writes down what it was answered, a line each, into the file
// ANSWERS. What it does at LOAD is its parameter "do".
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonrepoagent.h"

static FILE* answers;

static void answer(const char* what, TRITONSERVER_Error* error, const char* text)
{
  if (error != NULL) {
    fprintf(answers, "%s: %s: %s\n", what, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
  } else {
    fprintf(answers, "%s: %s\n", what, text);
  }
  fflush(answers);
}

static const char* parameter(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* wanted)
{
  uint32_t count = 0;
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
  for (uint32_t index = 0; index < count; ++index) {
    const char *name, *value;
    TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelParameter(agent, model, index, &name, &value));
    if (strcmp(name, wanted) == 0) {
      return value;
    }
  }
  return "";
}

static void ask_config(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
  char text[4096];
  const char* value = "";
  size_t size = 0;
  TRITONSERVER_Message* config = NULL;
  TRITONSERVER_Error* error = TRITONREPOAGENT_ModelConfig(agent, model, 1, &config);
  if (error == NULL) {
    TRITONSERVER_ErrorDelete(TRITONSERVER_MessageSerializeToJson(config, &value, &size));
    snprintf(text, sizeof(text), "%.*s", (int)size, value);
  }
  answer("config", error, text);
  TRITONSERVER_ErrorDelete(TRITONSERVER_MessageDelete(config));
}

static void ask_everything(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
  char text[4096];
  uint32_t major = 99, minor = 99, count = 0;
  const char *location = "", *again = "", *name = "", *value = "";
  TRITONREPOAGENT_ArtifactType type = (TRITONREPOAGENT_ArtifactType)99;
  TRITONSERVER_Message* config = NULL;

  TRITONSERVER_Error* error = TRITONREPOAGENT_ApiVersion(&major, &minor);
  snprintf(text, sizeof(text), "%u.%u", major, minor);
  answer("version", error, text);
  answer("ready", TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, ""), "released");
  error = TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &location);
  snprintf(text, sizeof(text), "%d %s", (int)type, location);
  answer("location", error, text);
  error = TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &again);
  answer("location again", error, location == again ? "same" : "other");
  TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelParameterCount(agent, model, &count));
  for (uint32_t index = 0; index <= count; ++index) {
    error = TRITONREPOAGENT_ModelParameter(agent, model, index, &name, &value);
    snprintf(text, sizeof(text), "%s=%s", name, value);
    answer("parameter", error, text);
  }
  answer("config 2", TRITONREPOAGENT_ModelConfig(agent, model, 2, &config), "there");
  ask_config(agent, model);
  answer(
      "acquire remote",
      TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM, &value),
      "there");
  answer("null", TRITONREPOAGENT_ModelRepositoryLocation(NULL, model, &type, &location), "there");
  answer("swapped", TRITONREPOAGENT_ModelState((TRITONREPOAGENT_AgentModel*)agent, (void**)&value), "there");
  answer("log", TRITONSERVER_LogMessage(TRITONSERVER_LOG_WARN, "there/curious.c", 42, "a word of the agent"), "logged");
}

// `without`: a file that is left behind.
static TRITONSERVER_Error* relocate(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* without)
{
  char command[8192];
  const char *from = NULL, *to = NULL, *again = NULL;
  TRITONREPOAGENT_ArtifactType type;
  TRITONSERVER_Error* error = TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &from);
  if (error == NULL) {
    error = TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &to);
  }
  if (error == NULL) {
    error = TRITONREPOAGENT_ModelRepositoryLocationAcquire(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, &again);
  }
  if (error != NULL) {
    return error;
  }
  answer("acquired twice", NULL, to == again ? "same" : "other");
  snprintf(
      command, sizeof(command), "cp -r '%s'/. '%s' && echo moved > '%s/moved.txt' && rm -f '%s/%s'", from, to, to, to,
      without);
  if (system(command) != 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "cannot copy");
  }
  return TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, to);
}

struct both {
  TRITONREPOAGENT_Agent* agent;
  TRITONREPOAGENT_AgentModel* model;
};

static void* on_a_thread(void* pair)
{
  struct both* both = pair;
  const char* location = "";
  TRITONREPOAGENT_ArtifactType type;
  for (int round = 0; round < 200; ++round) {
    TRITONSERVER_Error* error = TRITONREPOAGENT_ModelRepositoryLocation(both->agent, both->model, &type, &location);
    if (error != NULL) {
      TRITONSERVER_ErrorDelete(error);
      return "failed";
    }
  }
  return (void*)location;
}

static void ask_from_threads(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
  struct both both = {agent, model};
  pthread_t threads[8];
  for (int index = 0; index < 8; ++index) {
    pthread_create(&threads[index], NULL, on_a_thread, &both);
  }
  for (int index = 0; index < 8; ++index) {
    void* found = NULL;
    pthread_join(threads[index], &found);
    answer("thread", NULL, found);
  }
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action)
{
  const char* what = parameter(agent, model, "do");
  answers = fopen(getenv("ANSWERS"), "a");
  TRITONSERVER_Error* error = NULL;
  if (action != TRITONREPOAGENT_ACTION_LOAD) {
    answer("update", TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, "/"), "moved");
  } else if (strcmp(what, "relocate") == 0) {
    error = relocate(agent, model, "none");
  } else if (strcmp(what, "leave the configuration") == 0) {
    ask_config(agent, model);
    error = relocate(agent, model, "config.pbtxt");
  } else if (strcmp(what, "thread") == 0) {
    ask_from_threads(agent, model);
  } else if (strcmp(what, "nonsense") == 0) {
    error = (TRITONSERVER_Error*)agent;
  } else if (strcmp(what, "crash") == 0) {
    abort();
  } else if (strcmp(what, "update nowhere") == 0) {
    error = TRITONREPOAGENT_ModelRepositoryUpdate(agent, model, TRITONREPOAGENT_ARTIFACT_FILESYSTEM, "/no/such/place");
  } else {
    ask_everything(agent, model);
  }
  fclose(answers);
  return error;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
  const char *location = "", *what = parameter(agent, model, "do");
  TRITONREPOAGENT_ArtifactType type;
  if (strcmp(what, "relocate") == 0) {
    answers = fopen(getenv("ANSWERS"), "a");
    TRITONSERVER_ErrorDelete(TRITONREPOAGENT_ModelRepositoryLocation(agent, model, &type, &location));
    answer("release", TRITONREPOAGENT_ModelRepositoryLocationRelease(agent, model, location), "released");
    fclose(answers);
  }
  return NULL;
}
