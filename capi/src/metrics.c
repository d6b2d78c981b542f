// Custom metrics.
#include <stdlib.h>
#include <string.h>

#include "layer.h"

#define MOST_BUCKETS 10000

struct family {
  struct object object;
  core_object core;
  int kind;
  _Atomic int metrics;
};

struct metric {
  struct object object;
  core_object core;
  struct family* family;
};

struct metric_args {
  struct object object;
  double* buckets;
  uint64_t bucket_count;
};

static const char* kind_text(int kind)
{
  static const char* const texts[] = {"COUNTER", "GAUGE", "HISTOGRAM"};
  return texts[kind];
}

static void delete_in_core(core_object object)
{
  TRITONSERVER_Error* error = NULL;
  const core* core = core_or_error(&error);
  log_and_delete(core == NULL ? error : core->object_delete(object), "a metric could not be deleted");
}

static void destroy_family(void* object)
{
  delete_in_core(((struct family*)object)->core);
  free(object);
}

TRITONSERVER_Error* TRITONSERVER_MetricFamilyNew(
    TRITONSERVER_MetricFamily** family, const TRITONSERVER_MetricKind kind, const char* name, const char* description)
{
  REQUIRE(family);
  REQUIRE(name);
  REQUIRE(description);
  if ((int)kind < TRITONSERVER_METRIC_KIND_COUNTER || (int)kind > TRITONSERVER_METRIC_KIND_HISTOGRAM) {
    return INVALID("unknown metric kind '%d'", (int)kind);
  }
  CROSS(core);
  struct family* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  it->kind = (int)kind;
  TRITONSERVER_Error* error = core->family_new((int)kind, name, description, &it->core);
  if (error != NULL) {
    free(it);
    return error;
  }
  return publish(KIND_FAMILY, it, destroy_family, family);
}

TRITONSERVER_Error* TRITONSERVER_MetricFamilyDelete(TRITONSERVER_MetricFamily* family)
{
  BORROW(KIND_FAMILY, family, it, family);
  if (it->metrics > 0) {
    return fail(
        TRITONSERVER_ERROR_INTERNAL,
        "Must call MetricDelete on all dependent metrics before calling MetricFamilyDelete.");
  }
  return delete_handle(family, KIND_FAMILY);
}

TRITONSERVER_Error* TRITONSERVER_GetMetricFamilyKind(TRITONSERVER_MetricFamily* family, TRITONSERVER_MetricKind* kind)
{
  BORROW(KIND_FAMILY, family, it, family);
  REQUIRE(kind);
  *kind = (TRITONSERVER_MetricKind)it->kind;
  return NULL;
}

static void destroy_args(void* object)
{
  free(((struct metric_args*)object)->buckets);
  free(object);
}

TRITONSERVER_Error* TRITONSERVER_MetricArgsNew(TRITONSERVER_MetricArgs** args)
{
  REQUIRE(args);
  struct metric_args* it = calloc(1, sizeof(*it));
  return it == NULL ? out_of_memory() : publish(KIND_METRIC_ARGS, it, destroy_args, args);
}

TRITONSERVER_Error* TRITONSERVER_MetricArgsSetHistogram(
    TRITONSERVER_MetricArgs* args, const double* buckets, const uint64_t bucket_count)
{
  BORROW(KIND_METRIC_ARGS, metric_args, it, args);
  REQUIRE(buckets);
  if (bucket_count == 0 || bucket_count > MOST_BUCKETS) {
    return INVALID("a histogram has 1 to %d buckets, not %llu", MOST_BUCKETS, (unsigned long long)bucket_count);
  }
  double* copy = malloc(bucket_count * sizeof(double));
  if (copy == NULL) {
    return out_of_memory();
  }
  memcpy(copy, buckets, bucket_count * sizeof(double));
  free(it->buckets);
  it->buckets = copy;
  it->bucket_count = bucket_count;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_MetricArgsDelete(TRITONSERVER_MetricArgs* args)
{
  return args == NULL ? NULL : delete_handle(args, KIND_METRIC_ARGS);
}

static void destroy_metric(void* object)
{
  struct metric* it = object;
  delete_in_core(it->core);
  --it->family->metrics;
  handle_return(it->family);
  free(it);
}

static TRITONSERVER_Error* new_metric(
    TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family, const TRITONSERVER_Parameter** labels,
    uint64_t label_count, const struct metric_args* args)
{
  BORROW(KIND_FAMILY, family, of, family);
  REQUIRE(metric);
  if (of->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM && (args == NULL || args->bucket_count == 0)) {
    return INVALID("a metric of a histogram needs its buckets: see TRITONSERVER_MetricArgsSetHistogram");
  }
  CROSS(core);
  struct metric* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  struct borrowed borrowed = {0};
  TRITONSERVER_Error* error = borrow_parameters(labels, label_count, &borrowed);
  if (error == NULL) {
    error = core->metric_new(
        of->core, borrowed.items, borrowed.count, args == NULL ? NULL : args->buckets,
        args == NULL ? 0 : args->bucket_count, &it->core);
  }
  borrowed_delete(&borrowed);
  if (error != NULL) {
    free(it);
    return error;
  }
  it->family = handle_borrow(family, KIND_FAMILY);
  if (it->family == NULL) {
    delete_in_core(it->core);
    free(it);
    return bad_handle(family, KIND_FAMILY);
  }
  ++of->metrics;
  return publish(KIND_METRIC, it, destroy_metric, metric);
}

TRITONSERVER_Error* TRITONSERVER_MetricNew(
    TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family, const TRITONSERVER_Parameter** labels,
    const uint64_t label_count)
{
  return new_metric(metric, family, labels, label_count, NULL);
}

TRITONSERVER_Error* TRITONSERVER_MetricNewWithArgs(
    TRITONSERVER_Metric** metric, TRITONSERVER_MetricFamily* family, const TRITONSERVER_Parameter** labels,
    const uint64_t label_count, const TRITONSERVER_MetricArgs* args)
{
  BORROW(KIND_METRIC_ARGS, metric_args, it, args);
  return new_metric(metric, family, labels, label_count, it);
}

TRITONSERVER_Error* TRITONSERVER_MetricDelete(TRITONSERVER_Metric* metric)
{
  return delete_handle(metric, KIND_METRIC);
}

TRITONSERVER_Error* TRITONSERVER_GetMetricKind(TRITONSERVER_Metric* metric, TRITONSERVER_MetricKind* kind)
{
  BORROW(KIND_METRIC, metric, it, metric);
  REQUIRE(kind);
  *kind = (TRITONSERVER_MetricKind)it->family->kind;
  return NULL;
}

static TRITONSERVER_Error* unsupported(const struct metric* it, const char* what)
{
  return fail(
      TRITONSERVER_ERROR_UNSUPPORTED, "TRITONSERVER_METRIC_KIND_%s does not support %s", kind_text(it->family->kind),
      what);
}

TRITONSERVER_Error* TRITONSERVER_MetricValue(TRITONSERVER_Metric* metric, double* value)
{
  BORROW(KIND_METRIC, metric, it, metric);
  REQUIRE(value);
  if (it->family->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM) {
    return unsupported(it, "Value");
  }
  CROSS(core);
  return core->metric_value(it->core, value);
}

TRITONSERVER_Error* TRITONSERVER_MetricIncrement(TRITONSERVER_Metric* metric, double value)
{
  BORROW(KIND_METRIC, metric, it, metric);
  if (it->family->kind == TRITONSERVER_METRIC_KIND_HISTOGRAM) {
    return unsupported(it, "Increment");
  }
  if (it->family->kind == TRITONSERVER_METRIC_KIND_COUNTER && !(value >= 0)) {
    return INVALID(
        "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values.");
  }
  CROSS(core);
  return core->metric_change(it->core, CORE_INCREMENT, value);
}

TRITONSERVER_Error* TRITONSERVER_MetricSet(TRITONSERVER_Metric* metric, double value)
{
  BORROW(KIND_METRIC, metric, it, metric);
  if (it->family->kind != TRITONSERVER_METRIC_KIND_GAUGE) {
    return unsupported(it, "Set");
  }
  CROSS(core);
  return core->metric_change(it->core, CORE_SET, value);
}

TRITONSERVER_Error* TRITONSERVER_MetricObserve(TRITONSERVER_Metric* metric, double value)
{
  BORROW(KIND_METRIC, metric, it, metric);
  if (it->family->kind != TRITONSERVER_METRIC_KIND_HISTOGRAM) {
    return unsupported(it, "Observe");
  }
  CROSS(core);
  return core->metric_change(it->core, CORE_OBSERVE, value);
}
