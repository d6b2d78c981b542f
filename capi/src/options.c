// Settings of a server: kept as the list of calls that set them, which Python makes again. Those of the log act at once.
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer.h"

static void destroy(void* object)
{
  struct options* options = object;
  pthread_mutex_destroy(&options->lock);
  free(options->calls.text);
  free(options);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsNew(TRITONSERVER_ServerOptions** options)
{
  REQUIRE(options);
  struct options* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  pthread_mutex_init(&it->lock, NULL);
  return publish(KIND_OPTIONS, it, destroy, options);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsDelete(TRITONSERVER_ServerOptions* options)
{
  return delete_handle(options, KIND_OPTIONS);
}

// One call with its arguments by `format`: s text, i number, b bool, d double.
static TRITONSERVER_Error* record(TRITONSERVER_ServerOptions* options, const char* name, const char* format, ...)
{
  BORROW(KIND_OPTIONS, options, it, options);
  va_list arguments;
  va_start(arguments, format);
  for (const char* kind = format; *kind != '\0'; ++kind) {
    if (*kind == 's' && va_arg(arguments, const char*) == NULL) {
      va_end(arguments);
      return INVALID("argument %d of %s is NULL", (int)(kind - format) + 2, name);
    }
    if (*kind == 'i') {
      (void)va_arg(arguments, int64_t);
    } else if (*kind == 'b') {
      (void)va_arg(arguments, int);
    } else if (*kind == 'd') {
      (void)va_arg(arguments, double);
    }
  }
  va_end(arguments);
  pthread_mutex_lock(&it->lock);
  build_text(&it->calls, it->calls.size == 0 ? "[" : ",[");
  build_json_string(&it->calls, name);
  va_start(arguments, format);
  for (const char* kind = format; *kind != '\0'; ++kind) {
    char number[64];
    build_text(&it->calls, ",");
    if (*kind == 's') {
      build_json_string(&it->calls, va_arg(arguments, const char*));
    } else if (*kind == 'i') {
      snprintf(number, sizeof(number), "%lld", (long long)va_arg(arguments, int64_t));
      build_text(&it->calls, number);
    } else if (*kind == 'b') {
      build_text(&it->calls, va_arg(arguments, int) ? "true" : "false");
    } else {
      snprintf(number, sizeof(number), "%.17g", va_arg(arguments, double));
      build_text(&it->calls, number);
    }
  }
  va_end(arguments);
  build_text(&it->calls, "]");
  bool failed = it->calls.failed;
  pthread_mutex_unlock(&it->lock);
  return failed ? out_of_memory() : NULL;
}

static TRITONSERVER_Error* check_size(const char* what, uint64_t size)
{
  return size > INT64_MAX ? INVALID("%s of %llu bytes is too large", what, (unsigned long long)size) : NULL;
}

static TRITONSERVER_Error* check_real(const char* what, double value)
{
  return isfinite(value) ? NULL : INVALID("%s must be a finite number", what);
}

#define TEXT(NAME, call)                                                                                    \
  TRITONSERVER_Error* TRITONSERVER_ServerOptionsSet##NAME(TRITONSERVER_ServerOptions* options, const char* text) \
  {                                                                                                         \
    return record(options, call, "s", text);                                                                \
  }
#define FLAG(NAME, call)                                                                              \
  TRITONSERVER_Error* TRITONSERVER_ServerOptionsSet##NAME(TRITONSERVER_ServerOptions* options, bool on) \
  {                                                                                                   \
    return record(options, call, "b", (int)on);                                                       \
  }
#define COUNT(NAME, call)                                                                                       \
  TRITONSERVER_Error* TRITONSERVER_ServerOptionsSet##NAME(TRITONSERVER_ServerOptions* options, unsigned int count) \
  {                                                                                                             \
    return record(options, call, "i", (int64_t)count);                                                          \
  }
#define SIZE(NAME, call)                                                                                \
  TRITONSERVER_Error* TRITONSERVER_ServerOptionsSet##NAME(TRITONSERVER_ServerOptions* options, uint64_t size) \
  {                                                                                                     \
    TRY(check_size(#NAME, size));                                                                       \
    return record(options, call, "i", (int64_t)size);                                                   \
  }
#define SETTING(NAME, call)                                                                         \
  TRITONSERVER_Error* TRITONSERVER_ServerOptionsSet##NAME(                                          \
      TRITONSERVER_ServerOptions* options, const char* name, const char* setting, const char* value) \
  {                                                                                                 \
    return record(options, call, "sss", name, setting, value);                                      \
  }

TEXT(ServerId, "set_server_id")
TEXT(ModelRepositoryPath, "set_model_repository_path")
TEXT(StartupModel, "set_startup_model")
TEXT(ModelConfigName, "set_model_config_name")
TEXT(CacheDirectory, "set_cache_directory")
TEXT(BackendDirectory, "set_backend_directory")
TEXT(RepoAgentDirectory, "set_repo_agent_directory")
FLAG(StrictModelConfig, "set_strict_model_config")
FLAG(ExitOnError, "set_exit_on_error")
FLAG(StrictReadiness, "set_strict_readiness")
FLAG(ModelNamespacing, "set_model_namespacing")
FLAG(EnablePeerAccess, "set_enable_peer_access")
FLAG(Metrics, "set_metrics")
FLAG(GpuMetrics, "set_gpu_metrics")
FLAG(CpuMetrics, "set_cpu_metrics")
COUNT(ExitTimeout, "set_exit_timeout")
COUNT(BufferManagerThreadCount, "set_buffer_manager_thread_count")
COUNT(ModelLoadThreadCount, "set_model_load_thread_count")
COUNT(ModelLoadRetryCount, "set_model_load_retry_count")
SIZE(PinnedMemoryPoolByteSize, "set_pinned_memory_pool_byte_size")
SIZE(ResponseCacheByteSize, "set_response_cache_byte_size")
SIZE(MetricsInterval, "set_metrics_interval")
SETTING(BackendConfig, "set_backend_config")
SETTING(MetricsConfig, "set_metrics_config")

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelControlMode(
    TRITONSERVER_ServerOptions* options, TRITONSERVER_ModelControlMode mode)
{
  if ((int)mode < TRITONSERVER_MODEL_CONTROL_NONE || (int)mode > TRITONSERVER_MODEL_CONTROL_EXPLICIT) {
    return INVALID("unknown model control mode '%d'", (int)mode);
  }
  return record(options, "set_model_control_mode", "i", (int64_t)mode);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetRateLimiterMode(
    TRITONSERVER_ServerOptions* options, TRITONSERVER_RateLimitMode mode)
{
  if ((int)mode < TRITONSERVER_RATE_LIMIT_OFF || (int)mode > TRITONSERVER_RATE_LIMIT_EXEC_COUNT) {
    return INVALID("unknown rate limit mode '%d'", (int)mode);
  }
  return record(options, "set_rate_limiter_mode", "i", (int64_t)mode);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsAddRateLimiterResource(
    TRITONSERVER_ServerOptions* options, const char* name, const size_t count, const int device)
{
  TRY(check_size("a resource", count));
  return record(options, "add_rate_limiter_resource", "sii", name, (int64_t)count, (int64_t)device);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCudaMemoryPoolByteSize(
    TRITONSERVER_ServerOptions* options, int device, uint64_t byte_size)
{
  TRY(check_size("a pool", byte_size));
  return record(options, "set_cuda_memory_pool_byte_size", "ii", (int64_t)device, (int64_t)byte_size);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(
    TRITONSERVER_ServerOptions* options, int device, size_t byte_size)
{
  TRY(check_size("an address space", byte_size));
  return record(options, "set_cuda_virtual_address_size", "ii", (int64_t)device, (int64_t)byte_size);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetCacheConfig(
    TRITONSERVER_ServerOptions* options, const char* cache_name, const char* config_json)
{
  REQUIRE(cache_name);
  REQUIRE(config_json);
  const char* fault = json_fault(config_json, strlen(config_json));
  if (fault != NULL || strchr(config_json, '{') == NULL) {
    return INVALID(
        "the configuration of cache '%s' is not a JSON object: %s", cache_name, fault == NULL ? "another value" : fault);
  }
  return record(options, "set_cache_config", "ss", cache_name, config_json);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetMinSupportedComputeCapability(
    TRITONSERVER_ServerOptions* options, double capability)
{
  TRY(check_real("the compute capability", capability));
  return record(options, "set_min_supported_compute_capability", "d", capability);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit(
    TRITONSERVER_ServerOptions* options, const TRITONSERVER_InstanceGroupKind kind, const int device,
    const double fraction)
{
  BORROW(KIND_OPTIONS, options, it, options);
  TRY(check_real("the fraction of memory", fraction));
  if (kind != TRITONSERVER_INSTANCEGROUPKIND_GPU) {
    return fail(
        TRITONSERVER_ERROR_UNSUPPORTED, "given device kind is not supported, got: %s",
        TRITONSERVER_InstanceGroupKindString(kind));
  }
  return record(options, "set_model_load_device_limit", "iid", (int64_t)kind, (int64_t)device, fraction);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetHostPolicy(
    TRITONSERVER_ServerOptions* options, const char* policy, const char* setting, const char* value)
{
  BORROW(KIND_OPTIONS, options, it, options);
  REQUIRE(setting);
  if (strcmp(setting, "numa-node") != 0 && strcmp(setting, "cpu-cores") != 0) {
    return fail(
        TRITONSERVER_ERROR_UNSUPPORTED,
        "Unsupported host policy setting '%s' is specified, supported settings are 'numa-node', 'cpu-cores'", setting);
  }
  return record(options, "set_host_policy", "sss", policy, setting, value);
}

// A setting of the log: acts now, and is kept.
static TRITONSERVER_Error* set_log(
    TRITONSERVER_ServerOptions* options, const char* setting, const char* text, int64_t number)
{
  BORROW(KIND_OPTIONS, options, it, options);
  CROSS(core);
  TRY(core->log_set(setting, text == NULL ? "" : text, number));
  if (text != NULL) {
    return record(options, setting, "s", text);
  }
  bool flag = strcmp(setting, "set_log_format") != 0 && strcmp(setting, "set_log_verbose") != 0;
  return flag ? record(options, setting, "b", (int)number) : record(options, setting, "i", number);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogFile(TRITONSERVER_ServerOptions* options, const char* file)
{
  return set_log(options, "set_log_file", file == NULL ? "" : file, 0);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogInfo(TRITONSERVER_ServerOptions* options, bool enabled)
{
  return set_log(options, "set_log_info", NULL, enabled);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogWarn(TRITONSERVER_ServerOptions* options, bool enabled)
{
  return set_log(options, "set_log_warn", NULL, enabled);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogError(TRITONSERVER_ServerOptions* options, bool enabled)
{
  return set_log(options, "set_log_error", NULL, enabled);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogFormat(
    TRITONSERVER_ServerOptions* options, const TRITONSERVER_LogFormat format)
{
  if ((int)format < TRITONSERVER_LOG_DEFAULT || (int)format > TRITONSERVER_LOG_ISO8601) {
    return INVALID("unknown log format '%d'", (int)format);
  }
  return set_log(options, "set_log_format", NULL, (int64_t)format);
}

TRITONSERVER_Error* TRITONSERVER_ServerOptionsSetLogVerbose(TRITONSERVER_ServerOptions* options, int level)
{
  return set_log(options, "set_log_verbose", NULL, level);
}
