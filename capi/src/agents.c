// What native agents see of the server: the twelve functions of tritonrepoagent.h that it offers.
#include "agents.h"

#include <stdlib.h>
#include <string.h>

#include "layer.h"

static void destroy_model(void* object)
{
  struct agent_model* it = object;
  for (uint64_t index = 0; index < it->parameter_count; ++index) {
    free(it->parameters[index].name);
    free(it->parameters[index].text);
  }
  free(it->parameters);
  for (struct kept_text *text = it->texts, *next; text != NULL; text = next) {
    next = text->next;
    free(text->text);
    free(text);
  }
  pthread_mutex_destroy(&it->lock);
  free(it);
}

TRITONSERVER_Error* repoagent_model_open(
    core_object model, const core_parameter* parameters, uint64_t count, void** handle)
{
  struct agent_model* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  pthread_mutex_init(&it->lock, NULL);
  it->core = model;
  it->parameters = calloc(count + 1, sizeof(*it->parameters));
  if (it->parameters == NULL) {
    destroy_model(it);
    return out_of_memory();
  }
  for (uint64_t index = 0; index < count; ++index) {
    struct named_value* value = &it->parameters[it->parameter_count++];
    TRITONSERVER_Error* error = set_text(&value->name, parameters[index].name);
    error = error != NULL ? error : set_text(&value->text, parameters[index].bytes);
    if (error != NULL) {
      destroy_model(it);
      return error;
    }
  }
  return publish(KIND_AGENT_MODEL, it, destroy_model, handle);
}

void repoagent_model_close(void* model)
{
  handle_delete(model, KIND_AGENT_MODEL);
}

// `text` for as long as the model lives; a text that was handed out before is handed out again.
static TRITONSERVER_Error* keep(struct agent_model* it, core_text text, const char** out)
{
  if (text.text == NULL) {
    return out_of_memory();
  }
  pthread_mutex_lock(&it->lock);
  struct kept_text* kept = it->texts;
  while (kept != NULL && strcmp(kept->text, text.text) != 0) {
    kept = kept->next;
  }
  if (kept != NULL) {
    free(text.text);
  } else if ((kept = malloc(sizeof(*kept))) != NULL) {
    kept->text = text.text;
    kept->next = it->texts;
    it->texts = kept;
  } else {
    free(text.text);
  }
  pthread_mutex_unlock(&it->lock);
  if (kept == NULL) {
    return out_of_memory();
  }
  *out = kept->text;
  return NULL;
}

#define AGENT_AND_MODEL()                         \
  BORROW(KIND_AGENT, agent, whose, agent);        \
  BORROW(KIND_AGENT_MODEL, agent_model, it, model)

TRITONSERVER_Error* TRITONREPOAGENT_ApiVersion(uint32_t* major, uint32_t* minor)
{
  REQUIRE(major);
  REQUIRE(minor);
  *major = TRITONREPOAGENT_API_VERSION_MAJOR;
  *minor = TRITONREPOAGENT_API_VERSION_MINOR;
  return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocation(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, TRITONREPOAGENT_ArtifactType* type,
    const char** location)
{
  AGENT_AND_MODEL();
  REQUIRE(type);
  REQUIRE(location);
  CROSS(core);
  core_text text = {NULL, 0};
  int found = TRITONREPOAGENT_ARTIFACT_FILESYSTEM;
  TRY(core->agent_location(it->core, &found, &text));
  *type = (TRITONREPOAGENT_ArtifactType)found;
  return keep(it, text, location);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocationAcquire(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ArtifactType type,
    const char** location)
{
  AGENT_AND_MODEL();
  REQUIRE(location);
  if (type != TRITONREPOAGENT_ARTIFACT_FILESYSTEM) {
    return INVALID("Unexpected artifact type, expects 'TRITONREPOAGENT_ARTIFACT_FILESYSTEM'");
  }
  CROSS(core);
  core_text text = {NULL, 0};
  TRY(core->agent_acquire(it->core, &text));
  return keep(it, text, location);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryLocationRelease(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const char* location)
{
  AGENT_AND_MODEL();
  (void)location;  // there is one; a stock server does not look either
  CROSS(core);
  return core->agent_release(it->core);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelRepositoryUpdate(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ArtifactType type,
    const char* location)
{
  AGENT_AND_MODEL();
  REQUIRE(location);
  if (type != TRITONREPOAGENT_ARTIFACT_FILESYSTEM && type != TRITONREPOAGENT_ARTIFACT_REMOTE_FILESYSTEM) {
    return INVALID("unknown artifact type '%d'", (int)type);
  }
  CROSS(core);
  return core->agent_update(it->core, (int)type, location);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelParameterCount(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, uint32_t* count)
{
  AGENT_AND_MODEL();
  REQUIRE(count);
  *count = (uint32_t)it->parameter_count;
  return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelParameter(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const uint32_t index, const char** name,
    const char** value)
{
  AGENT_AND_MODEL();
  REQUIRE(name);
  REQUIRE(value);
  if (index >= it->parameter_count) {
    return INVALID("index out of range for model parameters");
  }
  *name = it->parameters[index].name;
  *value = it->parameters[index].text;
  return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelConfig(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const uint32_t config_version,
    TRITONSERVER_Message** config)
{
  AGENT_AND_MODEL();
  REQUIRE(config);
  if (config_version != 1) {
    return INVALID("model configuration version %u not supported, supported versions are: 1", config_version);
  }
  CROSS(core);
  core_text json = {NULL, 0};
  TRY(core->agent_config(it->core, &json));
  return message_of(json, config);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelState(TRITONREPOAGENT_AgentModel* model, void** state)
{
  BORROW(KIND_AGENT_MODEL, agent_model, it, model);
  REQUIRE(state);
  *state = it->state;
  return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelSetState(TRITONREPOAGENT_AgentModel* model, void* state)
{
  BORROW(KIND_AGENT_MODEL, agent_model, it, model);
  it->state = state;
  return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_State(TRITONREPOAGENT_Agent* agent, void** state)
{
  BORROW(KIND_AGENT, agent, it, agent);
  REQUIRE(state);
  *state = it->state;
  return NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_SetState(TRITONREPOAGENT_Agent* agent, void* state)
{
  BORROW(KIND_AGENT, agent, it, agent);
  it->state = state;
  return NULL;
}
