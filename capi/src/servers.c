// Servers, the log and custom metrics: everything here crosses to Python.
#include <stdlib.h>
#include <string.h>

#include "layer.h"

#define SERVER()                           \
  BORROW(KIND_SERVER, server, it, server); \
  CROSS(core)

static TRITONSERVER_Error* refuse_in_callback(const char* what)
{
  return in_callback == 0 ? NULL
                          : fail(
                                TRITONSERVER_ERROR_UNAVAILABLE,
                                "%s waits for the requests that run, and this thread is in a callback of one: call it "
                                "from another thread",
                                what);
}

TRITONSERVER_Error* TRITONSERVER_ServerNew(TRITONSERVER_Server** server, TRITONSERVER_ServerOptions* options)
{
  BORROW(KIND_OPTIONS, options, settings, options);
  REQUIRE(server);
  CROSS(core);
  struct server* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  struct builder calls = {0};
  build_text(&calls, "[");
  pthread_mutex_lock(&settings->lock);
  if (settings->calls.size > 0) {
    build(&calls, settings->calls.text, settings->calls.size);
  }
  pthread_mutex_unlock(&settings->lock);
  build_text(&calls, "]");
  TRITONSERVER_Error* error =
      calls.failed ? out_of_memory() : core->server_new(calls.text, calls.size, &it->core);
  free(calls.text);
  if (error != NULL) {
    free(it);
    return error;
  }
  core_object made = it->core;
  error = publish(KIND_SERVER, it, free, server);
  if (error != NULL) {
    log_and_delete(core->server_delete(made), "a server without a handle");
  }
  return error;
}

TRITONSERVER_Error* TRITONSERVER_ServerDelete(TRITONSERVER_Server* server)
{
  TRY(refuse_in_callback("TRITONSERVER_ServerDelete"));
  SERVER();
  TRY(delete_handle(server, KIND_SERVER));
  return core->server_delete(it->core);
}

TRITONSERVER_Error* TRITONSERVER_ServerStop(TRITONSERVER_Server* server)
{
  TRY(refuse_in_callback("TRITONSERVER_ServerStop"));
  SERVER();
  return core->server_stop(it->core);
}

TRITONSERVER_Error* TRITONSERVER_ServerSetExitTimeout(TRITONSERVER_Server* server, unsigned int seconds)
{
  SERVER();
  return core->server_set_exit_timeout(it->core, seconds);
}

TRITONSERVER_Error* TRITONSERVER_ServerRegisterModelRepository(
    TRITONSERVER_Server* server, const char* path, const TRITONSERVER_Parameter** name_mapping,
    const uint32_t mapping_count)
{
  SERVER();
  REQUIRE(path);
  struct borrowed mapping = {0};
  TRITONSERVER_Error* error = borrow_parameters(name_mapping, mapping_count, &mapping);
  if (error == NULL) {
    error = core->repository_register(it->core, path, mapping.items, mapping.count);
  }
  borrowed_delete(&mapping);
  return error;
}

TRITONSERVER_Error* TRITONSERVER_ServerUnregisterModelRepository(TRITONSERVER_Server* server, const char* path)
{
  SERVER();
  REQUIRE(path);
  return core->repository_unregister(it->core, path);
}

TRITONSERVER_Error* TRITONSERVER_ServerPollModelRepository(TRITONSERVER_Server* server)
{
  SERVER();
  return core->repository_poll(it->core);
}

TRITONSERVER_Error* TRITONSERVER_ServerIsLive(TRITONSERVER_Server* server, bool* live)
{
  SERVER();
  REQUIRE(live);
  return core->server_is(it->core, CORE_LIVE, live);
}

TRITONSERVER_Error* TRITONSERVER_ServerIsReady(TRITONSERVER_Server* server, bool* ready)
{
  SERVER();
  REQUIRE(ready);
  return core->server_is(it->core, CORE_READY, ready);
}

TRITONSERVER_Error* TRITONSERVER_ServerModelIsReady(
    TRITONSERVER_Server* server, const char* model_name, const int64_t model_version, bool* ready)
{
  SERVER();
  REQUIRE(model_name);
  REQUIRE(ready);
  return core->model_is_ready(it->core, model_name, model_version, ready);
}

static TRITONSERVER_Error* property(
    TRITONSERVER_Server* server, const char* model_name, int64_t model_version, core_property which, uint32_t* flags,
    void** voidp)
{
  SERVER();
  REQUIRE(model_name);
  REQUIRE(flags);
  if (voidp != NULL) {
    *voidp = NULL;
  }
  return core->model_property(it->core, model_name, model_version, which, flags);
}

TRITONSERVER_Error* TRITONSERVER_ServerModelBatchProperties(
    TRITONSERVER_Server* server, const char* model_name, const int64_t model_version, uint32_t* flags, void** voidp)
{
  return property(server, model_name, model_version, CORE_BATCH, flags, voidp);
}

TRITONSERVER_Error* TRITONSERVER_ServerModelTransactionProperties(
    TRITONSERVER_Server* server, const char* model_name, const int64_t model_version, uint32_t* flags, void** voidp)
{
  return property(server, model_name, model_version, CORE_TRANSACTION, flags, voidp);
}

static TRITONSERVER_Error* document(
    TRITONSERVER_Server* server, core_document which, const char* model_name, int64_t model_version, uint32_t number,
    TRITONSERVER_Message** message)
{
  SERVER();
  REQUIRE(model_name);
  REQUIRE(message);
  core_text json = {NULL, 0};
  TRY(core->document(it->core, which, model_name, model_version, number, &json));
  return message_of(json, message);
}

TRITONSERVER_Error* TRITONSERVER_ServerMetadata(TRITONSERVER_Server* server, TRITONSERVER_Message** metadata)
{
  return document(server, CORE_SERVER_METADATA, "", -1, 0, metadata);
}

TRITONSERVER_Error* TRITONSERVER_ServerModelMetadata(
    TRITONSERVER_Server* server, const char* model_name, const int64_t model_version, TRITONSERVER_Message** metadata)
{
  return document(server, CORE_MODEL_METADATA, model_name, model_version, 0, metadata);
}

TRITONSERVER_Error* TRITONSERVER_ServerModelStatistics(
    TRITONSERVER_Server* server, const char* model_name, const int64_t model_version, TRITONSERVER_Message** statistics)
{
  return document(server, CORE_MODEL_STATISTICS, model_name, model_version, 0, statistics);
}

TRITONSERVER_Error* TRITONSERVER_ServerModelConfig(
    TRITONSERVER_Server* server, const char* model_name, const int64_t model_version, const uint32_t config_version,
    TRITONSERVER_Message** config)
{
  return document(server, CORE_MODEL_CONFIG, model_name, model_version, config_version, config);
}

TRITONSERVER_Error* TRITONSERVER_ServerModelIndex(
    TRITONSERVER_Server* server, uint32_t flags, TRITONSERVER_Message** index)
{
  return document(server, CORE_MODEL_INDEX, "", -1, flags, index);
}

static TRITONSERVER_Error* load(
    TRITONSERVER_Server* server, const char* model_name, const TRITONSERVER_Parameter** parameters, uint64_t count)
{
  SERVER();
  REQUIRE(model_name);
  struct borrowed borrowed = {0};
  TRITONSERVER_Error* error = borrow_parameters(parameters, count, &borrowed);
  if (error == NULL) {
    error = core->model_load(it->core, model_name, borrowed.items, borrowed.count);
  }
  borrowed_delete(&borrowed);
  return error;
}

TRITONSERVER_Error* TRITONSERVER_ServerLoadModel(TRITONSERVER_Server* server, const char* model_name)
{
  return load(server, model_name, NULL, 0);
}

TRITONSERVER_Error* TRITONSERVER_ServerLoadModelWithParameters(
    TRITONSERVER_Server* server, const char* model_name, const TRITONSERVER_Parameter** parameters,
    const uint64_t parameter_count)
{
  return load(server, model_name, parameters, parameter_count);
}

TRITONSERVER_Error* TRITONSERVER_ServerUnloadModel(TRITONSERVER_Server* server, const char* model_name)
{
  SERVER();
  REQUIRE(model_name);
  return core->model_unload(it->core, model_name, false);
}

TRITONSERVER_Error* TRITONSERVER_ServerUnloadModelAndDependents(TRITONSERVER_Server* server, const char* model_name)
{
  SERVER();
  REQUIRE(model_name);
  return core->model_unload(it->core, model_name, true);
}

bool TRITONSERVER_LogIsEnabled(TRITONSERVER_LogLevel level)
{
  TRITONSERVER_Error* error = NULL;
  bool enabled = false;
  const core* core = core_or_error(&error);
  if (core != NULL && (int)level >= TRITONSERVER_LOG_INFO && (int)level <= TRITONSERVER_LOG_VERBOSE) {
    error = core->log_is_enabled((int)level, &enabled);
  }
  TRITONSERVER_ErrorDelete(error);
  return enabled;
}

TRITONSERVER_Error* TRITONSERVER_LogMessage(
    TRITONSERVER_LogLevel level, const char* file, const int line, const char* text)
{
  REQUIRE(text);
  if ((int)level < TRITONSERVER_LOG_INFO || (int)level > TRITONSERVER_LOG_VERBOSE) {
    return INVALID("unknown logging level '%d'", (int)level);
  }
  CROSS(core);
  return core->log_message((int)level, file == NULL ? "" : file, line, text);
}
