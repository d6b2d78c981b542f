#include <stdlib.h>
#include <string.h>

#include "api.h"

static void destroy(void* object)
{
  struct api_server* it = object;
  if (it->server != NULL) {
    log_and_delete(TRITONSERVER_ServerDelete(it->server), "a server that was deleted");
  }
  handle_delete(it->options, KIND_OPTIONS);
  free(it->metrics);
  pthread_mutex_destroy(&it->lock);
  free(it);
}

static atomic_bool quiet;

repoagent_server repoagent_server_create(void)
{
  struct api_server* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return created(KIND_API_SERVER, NULL, destroy);
  }
  pthread_mutex_init(&it->lock, NULL);
  TRITONSERVER_Error* error = TRITONSERVER_ServerOptionsNew(&it->options);
  if (error == NULL) {
    error = TRITONSERVER_ServerOptionsSetModelControlMode(it->options, TRITONSERVER_MODEL_CONTROL_EXPLICIT);
  }
  if (error != NULL) {
    settle(error);
    destroy(it);
    return NULL;
  }
  repoagent_server made = created(KIND_API_SERVER, it, destroy);
  // The log is that of the process: a later server leaves it as the program set it.
  bool first = made != NULL && !atomic_exchange(&quiet, true);
  if (first && repoagent_server_set_option(made, "log_level", "none") != REPOAGENT_NO_ERROR) {
    atomic_store(&quiet, false);
    handle_delete(made, KIND_API_SERVER);
    return NULL;
  }
  return made;
}

repoagent_error repoagent_server_delete(repoagent_server server)
{
  if (in_callback > 0) {
    return settle(fail(TRITONSERVER_ERROR_UNAVAILABLE, "a server cannot be deleted from within a callback"));
  }
  HOLD(KIND_API_SERVER, api_server, it, server);
  if (!handle_delete(server, KIND_API_SERVER)) {
    return settle(bad_handle(server, KIND_API_SERVER));
  }
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_Server* running = it->server;
  it->server = NULL;
  pthread_mutex_unlock(&it->lock);
  return running == NULL ? REPOAGENT_NO_ERROR : settle(TRITONSERVER_ServerDelete(running));
}

static TRITONSERVER_Error* set_control(TRITONSERVER_ServerOptions* options, const char* value)
{
  static const char* const modes[] = {"none", "poll", "explicit"};
  for (int mode = 0; mode < 3; ++mode) {
    if (strcmp(value, modes[mode]) == 0) {
      return TRITONSERVER_ServerOptionsSetModelControlMode(options, (TRITONSERVER_ModelControlMode)mode);
    }
  }
  return INVALID("option 'control' is 'none', 'poll' or 'explicit', not '%s'", value);
}

static TRITONSERVER_Error* set_level(TRITONSERVER_ServerOptions* options, const char* value)
{
  static const char* const levels[] = {"none", "error", "warning", "info", "verbose"};
  int level = 0;
  while (level < 5 && strcmp(value, levels[level]) != 0) {
    ++level;
  }
  if (level == 5) {
    return INVALID("option 'log_level' is 'none', 'error', 'warning', 'info' or 'verbose', not '%s'", value);
  }
  TRY(TRITONSERVER_ServerOptionsSetLogError(options, level >= 1));
  TRY(TRITONSERVER_ServerOptionsSetLogWarn(options, level >= 2));
  TRY(TRITONSERVER_ServerOptionsSetLogInfo(options, level >= 3));
  return TRITONSERVER_ServerOptionsSetLogVerbose(options, level >= 4);
}

static TRITONSERVER_Error* set_flag(
    TRITONSERVER_ServerOptions* options, const char* name, const char* value,
    TRITONSERVER_Error* (*set)(TRITONSERVER_ServerOptions*, bool))
{
  if (strcmp(value, "true") != 0 && strcmp(value, "false") != 0) {
    return INVALID("option '%s' is 'true' or 'false', not '%s'", name, value);
  }
  return set(options, *value == 't');
}

static TRITONSERVER_Error* set_timeout(TRITONSERVER_ServerOptions* options, const char* value)
{
  char* end = NULL;
  unsigned long seconds = strtoul(value, &end, 10);
  if (*value < '0' || *value > '9' || *end != '\0' || seconds > 1000000) {
    return INVALID("option 'exit_timeout' is a number of seconds, not '%s'", value);
  }
  return TRITONSERVER_ServerOptionsSetExitTimeout(options, (unsigned)seconds);
}

static TRITONSERVER_Error* set_option(TRITONSERVER_ServerOptions* options, const char* name, const char* value)
{
  static const struct {
    const char* name;
    TRITONSERVER_Error* (*set)(TRITONSERVER_ServerOptions*, const char*);
  } texts[] = {
      {"repository", TRITONSERVER_ServerOptionsSetModelRepositoryPath},
      {"startup_model", TRITONSERVER_ServerOptionsSetStartupModel},
      {"agents", TRITONSERVER_ServerOptionsSetRepoAgentDirectory},
      {"log_file", TRITONSERVER_ServerOptionsSetLogFile},
      {"control", set_control},
      {"log_level", set_level},
      {"exit_timeout", set_timeout},
  };
  for (size_t index = 0; index < sizeof(texts) / sizeof(*texts); ++index) {
    if (strcmp(name, texts[index].name) == 0) {
      return texts[index].set(options, value);
    }
  }
  if (strcmp(name, "exit_on_error") == 0) {
    return set_flag(options, name, value, TRITONSERVER_ServerOptionsSetExitOnError);
  }
  if (strcmp(name, "strict_readiness") == 0) {
    return set_flag(options, name, value, TRITONSERVER_ServerOptionsSetStrictReadiness);
  }
  return INVALID("unknown option '%s': see repoagent/server.h", name);
}

repoagent_error repoagent_server_set_option(repoagent_server server, const char* name, const char* value)
{
  HOLD(KIND_API_SERVER, api_server, it, server);
  NEED(name);
  NEED(value);
  return settle(set_option(it->options, name, value));
}

repoagent_error repoagent_server_start(repoagent_server server)
{
  HOLD(KIND_API_SERVER, api_server, it, server);
  pthread_mutex_lock(&it->lock);
  TRITONSERVER_Server* started = it->server;
  TRITONSERVER_Error* error = started != NULL
                                  ? fail(TRITONSERVER_ERROR_ALREADY_EXISTS, "the server runs already")
                                  : TRITONSERVER_ServerNew(&started, it->options);
  it->server = started;
  pthread_mutex_unlock(&it->lock);
  return settle(error);
}

repoagent_error repoagent_server_stop(repoagent_server server)
{
  HOLD(KIND_API_SERVER, api_server, it, server);
  return settle(TRITONSERVER_ServerStop(it->server));
}

repoagent_error repoagent_server_is_ready(repoagent_server server, bool* ready)
{
  HOLD(KIND_API_SERVER, api_server, it, server);
  NEED(ready);
  *ready = false;
  return it->server == NULL ? REPOAGENT_NO_ERROR : settle(TRITONSERVER_ServerIsReady(it->server, ready));
}

repoagent_error repoagent_server_get_metrics(repoagent_server server, const char** text)
{
  HOLD(KIND_API_SERVER, api_server, it, server);
  NEED(text);
  *text = NULL;
  TRITONSERVER_Metrics* page = NULL;
  char* copy = NULL;
  const char* found = "";
  size_t size = 0;
  TRITONSERVER_Error* error = TRITONSERVER_ServerMetrics(it->server, &page);
  if (error == NULL) {
    error = TRITONSERVER_MetricsFormatted(page, TRITONSERVER_METRIC_PROMETHEUS, &found, &size);
  }
  if (error == NULL) {
    error = set_text(&copy, found);
  }
  handle_delete(page, KIND_METRICS);
  if (error == NULL) {
    show(&it->lock, &it->metrics, copy, text);
  }
  return settle(error);
}
