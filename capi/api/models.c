#include <stdlib.h>
#include <string.h>

#include "api.h"

static void destroy(void* object)
{
  struct api_model* it = object;
  free(it->name);
  free(it->metadata);
  free(it->report);
  handle_return(it->server);
  pthread_mutex_destroy(&it->lock);
  free(it);
}

repoagent_model repoagent_model_create(repoagent_server server, const char* name, int64_t version)
{
  struct api_server* of = handle_borrow(server, KIND_API_SERVER);
  if (of == NULL || name == NULL) {
    settle(of == NULL ? bad_handle(server, KIND_API_SERVER) : INVALID("argument 'name' is NULL"));
    handle_return(of);
    return NULL;
  }
  struct api_model* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    handle_return(of);
    return created(KIND_API_MODEL, NULL, destroy);
  }
  pthread_mutex_init(&it->lock, NULL);
  it->server = of;
  it->version = version;
  it->name = strdup(name);
  if (it->name == NULL) {
    destroy(it);
    return created(KIND_API_MODEL, NULL, destroy);
  }
  return created(KIND_API_MODEL, it, destroy);
}

repoagent_error repoagent_model_delete(repoagent_model model)
{
  return settle(delete_handle(model, KIND_API_MODEL));
}

repoagent_error repoagent_model_load(repoagent_model model)
{
  HOLD(KIND_API_MODEL, api_model, it, model);
  return settle(TRITONSERVER_ServerLoadModel(it->server->server, it->name));
}

repoagent_error repoagent_model_unload(repoagent_model model)
{
  HOLD(KIND_API_MODEL, api_model, it, model);
  return settle(TRITONSERVER_ServerUnloadModel(it->server->server, it->name));
}

repoagent_error repoagent_model_is_ready(repoagent_model model, bool* ready)
{
  HOLD(KIND_API_MODEL, api_model, it, model);
  NEED(ready);
  *ready = false;
  return settle(TRITONSERVER_ServerModelIsReady(it->server->server, it->name, it->version, ready));
}

repoagent_error repoagent_model_get_metadata(repoagent_model model, const char** json)
{
  HOLD(KIND_API_MODEL, api_model, it, model);
  NEED(json);
  *json = NULL;
  char* text = NULL;
  TRITONSERVER_Message* message = NULL;
  TRITONSERVER_Error* error =
      TRITONSERVER_ServerModelMetadata(it->server->server, it->name, it->version, &message);
  error = error != NULL ? error : take_json(message, &text);
  if (error == NULL) {
    show(&it->lock, &it->metadata, text, json);
  }
  return settle(error);
}

static TRITONSERVER_Error* report(struct api_model* it, const char** shown)
{
  BORROW(KIND_SERVER, server, server, it->server->server);
  CROSS(core);
  core_text json = {NULL, 0};
  TRY(core->document(server->core, CORE_LOAD_REPORT, it->name, it->version, 0, &json));
  if (json.text == NULL) {
    return out_of_memory();
  }
  show(&it->lock, &it->report, json.text, shown);
  return NULL;
}

repoagent_error repoagent_model_get_report(repoagent_model model, const char** json)
{
  HOLD(KIND_API_MODEL, api_model, it, model);
  NEED(json);
  *json = NULL;
  return settle(report(it, json));
}
