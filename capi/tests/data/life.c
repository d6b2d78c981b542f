// The whole life of every kind of object, right and wrong, over the stub table. Prints what is not as it should be.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub_core.h"

#define CHECK(condition)                                  \
  do {                                                    \
    if (!(condition)) {                                   \
      printf("line %d: %s\n", __LINE__, #condition);      \
    }                                                     \
  } while (0)

static int answers, releases, allocations, frees, starts, activities, tensors, trace_releases;

static int failed(TRITONSERVER_Error* error)
{
  TRITONSERVER_ErrorDelete(error);
  return error != NULL;
}

#define OK(call) CHECK(!failed(call))
#define BAD(call) CHECK(failed(call))

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType type, int64_t id,
    void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id)
{
  (void)allocator, (void)name, (void)id;
  *buffer = malloc(size);
  *buffer_userp = userp;
  *actual = userp == (void*)2 ? TRITONSERVER_MEMORY_GPU : type;
  *actual_id = 0;
  ++allocations;
  return userp == (void*)1 ? (free(*buffer), TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "no")) : NULL;
}

static TRITONSERVER_Error* release_buffer(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* userp, size_t size, TRITONSERVER_MemoryType type,
    int64_t id)
{
  (void)allocator, (void)userp, (void)size, (void)type, (void)id;
  free(buffer);
  ++frees;
  return NULL;
}

static TRITONSERVER_Error* count_start(TRITONSERVER_ResponseAllocator* allocator, void* userp)
{
  (void)allocator, (void)userp;
  ++starts;
  return NULL;
}

static TRITONSERVER_Error* query(
    TRITONSERVER_ResponseAllocator* allocator, void* userp, const char* name, size_t* size,
    TRITONSERVER_MemoryType* type, int64_t* id)
{
  (void)allocator, (void)userp, (void)name, (void)size;
  *type = TRITONSERVER_MEMORY_CPU_PINNED;
  *id = 0;
  return NULL;
}

static TRITONSERVER_Error* attributes(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, TRITONSERVER_BufferAttributes* about, void* userp,
    void* buffer_userp)
{
  size_t size = 0;
  (void)allocator, (void)name, (void)userp, (void)buffer_userp;
  return TRITONSERVER_BufferAttributesByteSize(about, &size);
}

static TRITONSERVER_InferenceResponse* kept;

static void complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  (void)flags, (void)userp;
  ++answers;
  if (response != NULL) {
    kept = response;
  }
}

static void released(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
  CHECK(flags == TRITONSERVER_REQUEST_RELEASE_ALL);
  ++releases;
  if (userp != NULL) {
    OK(TRITONSERVER_InferenceRequestDelete(request));
  }
}

static void on_activity(TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t at, void* userp)
{
  (void)trace, (void)activity, (void)at, (void)userp;
  ++activities;
}

static void on_tensor(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, const char* name,
    TRITONSERVER_DataType type, const void* base, size_t size, const int64_t* shape, uint64_t dims,
    TRITONSERVER_MemoryType memory, int64_t id, void* userp)
{
  (void)trace, (void)activity, (void)name, (void)type, (void)base, (void)size, (void)shape, (void)dims, (void)memory;
  (void)id, (void)userp;
  ++tensors;
}

static void on_trace_release(TRITONSERVER_InferenceTrace* trace, void* userp)
{
  (void)userp;
  ++trace_releases;
  OK(TRITONSERVER_InferenceTraceDelete(trace));
}

static void look_at(TRITONSERVER_InferenceResponse* response, float first)
{
  const char *name, *id, *label, *again;
  int64_t version, place;
  uint32_t count;
  TRITONSERVER_DataType type;
  TRITONSERVER_ParameterType kind;
  TRITONSERVER_MemoryType memory;
  const int64_t* shape;
  uint64_t dims;
  const void *base, *value;
  size_t size;
  void* userp;
  OK(TRITONSERVER_InferenceResponseModel(response, &name, &version));
  CHECK(strcmp(name, "m") == 0 && version == 1);
  OK(TRITONSERVER_InferenceResponseId(response, &id));
  OK(TRITONSERVER_InferenceResponseOutputCount(response, &count));
  CHECK(count == 1);
  OK(TRITONSERVER_InferenceResponseOutput(
      response, 0, &name, &type, &shape, &dims, &base, &size, &memory, &place, &userp));
  CHECK(type == TRITONSERVER_TYPE_FP32 && dims == 2 && shape[1] == 4 && size == 16 && memory == TRITONSERVER_MEMORY_CPU_PINNED);
  CHECK(memcmp(base, &first, sizeof(first)) == 0);
  OK(TRITONSERVER_InferenceResponseOutputClassificationLabel(response, 0, 3, &label));
  OK(TRITONSERVER_InferenceResponseOutputClassificationLabel(response, 0, 4, &again));
  CHECK(strcmp(label, "cat") == 0 && strcmp(again, "cat") == 0);
  BAD(TRITONSERVER_InferenceResponseOutputClassificationLabel(response, 1, 3, &label));
  OK(TRITONSERVER_InferenceResponseParameterCount(response, &count));
  OK(TRITONSERVER_InferenceResponseParameter(response, 0, &name, &kind, &value));
  CHECK(kind == TRITONSERVER_PARAMETER_STRING && strcmp(value, "a word") == 0);
  CHECK(TRITONSERVER_InferenceResponseError(response) == NULL);
}

static TRITONSERVER_InferenceRequest* make_request(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, size_t how)
{
  static const float values[4] = {1, 2, 3, 4};
  static const int64_t shape[2] = {1, 4};
  TRITONSERVER_InferenceRequest* request = NULL;
  OK(TRITONSERVER_InferenceRequestNew(&request, server, "m", -1));
  OK(TRITONSERVER_InferenceRequestAddInput(request, "x", TRITONSERVER_TYPE_FP32, shape, 2));
  BAD(TRITONSERVER_InferenceRequestAddInput(request, "x", TRITONSERVER_TYPE_FP32, shape, 2));
  BAD(TRITONSERVER_InferenceRequestAddRawInput(request, "y"));
  BAD(TRITONSERVER_InferenceRequestAppendInputData(request, "x", values, 16, TRITONSERVER_MEMORY_GPU, 0));
  OK(TRITONSERVER_InferenceRequestAppendInputData(request, "x", values, 8, TRITONSERVER_MEMORY_CPU, 0));
  OK(TRITONSERVER_InferenceRequestAppendInputData(request, "x", values + 2, 8, TRITONSERVER_MEMORY_CPU, 0));
  OK(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "x"));
  OK(TRITONSERVER_InferenceRequestAddRequestedOutput(request, "z"));
  OK(TRITONSERVER_InferenceRequestRemoveRequestedOutput(request, "z"));
  OK(TRITONSERVER_InferenceRequestSetStringParameter(request, "a", "text"));
  OK(TRITONSERVER_InferenceRequestSetIntParameter(request, "b", 1));
  BAD(TRITONSERVER_InferenceRequestSetBoolParameter(request, "b", true));
  OK(TRITONSERVER_InferenceRequestSetDoubleParameter(request, "c", 0.5));
  OK(TRITONSERVER_InferenceRequestSetCorrelationIdString(request, "seq"));
  OK(TRITONSERVER_InferenceRequestSetReleaseCallback(request, released, NULL));
  OK(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, (void*)how, complete, NULL));
  return request;
}

static void requests(TRITONSERVER_Server* server)
{
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  TRITONSERVER_InferenceTrace* trace = NULL;
  OK(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, NULL));
  OK(TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator, query));
  OK(TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(allocator, attributes));
  TRITONSERVER_InferenceRequest* request = make_request(server, allocator, 0);
  const char* const ids[] = {"", "twice", "fail", "refuse"};
  for (size_t round = 0; round < 4; ++round) {
    OK(TRITONSERVER_InferenceRequestSetId(request, ids[round]));
    OK(TRITONSERVER_InferenceTraceTensorNew(
        &trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS, 0, on_activity, on_tensor,
        on_trace_release, NULL));
    kept = NULL;
    CHECK(failed(TRITONSERVER_ServerInferAsync(server, request, trace)) == (round == 3));
    if (round < 2) {
      look_at(kept, 1.0F);
      CHECK(trace_releases == (int)(2 * round) + 1);  // the child's; ours goes with the response
    } else if (round == 2) {
      TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(kept);
      CHECK(strcmp(TRITONSERVER_ErrorMessage(error), "the model failed") == 0);
      TRITONSERVER_ErrorDelete(error);
      CHECK(TRITONSERVER_InferenceResponseError(kept) == error && TRITONSERVER_ErrorMessage(error) != NULL);
    }
    CHECK(failed(TRITONSERVER_InferenceResponseDelete(kept)) == (round == 3));
    BAD(TRITONSERVER_InferenceResponseDelete(kept));
    BAD(TRITONSERVER_InferenceTraceDelete(trace));
  }
  CHECK(answers == 4 && releases == 3 && allocations == 2 && frees == 2);
  CHECK(trace_releases == 7 && activities == 6 && tensors == 3);
  OK(TRITONSERVER_InferenceRequestDelete(request));
  BAD(TRITONSERVER_InferenceRequestDelete(request));
  for (size_t how = 1; how < 3; ++how) {
    request = make_request(server, allocator, how);
    OK(TRITONSERVER_InferenceRequestSetReleaseCallback(request, released, (void*)1));
    OK(TRITONSERVER_ServerInferAsync(server, request, NULL));
    TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(kept);
    CHECK(TRITONSERVER_ErrorCode(error) == (how == 1 ? TRITONSERVER_ERROR_INTERNAL : TRITONSERVER_ERROR_UNSUPPORTED));
    OK(TRITONSERVER_InferenceResponseDelete(kept));
    BAD(TRITONSERVER_InferenceRequestDelete(request));
  }
  CHECK(allocations == 4 && frees == 3);
  OK(TRITONSERVER_ResponseAllocatorDelete(allocator));
  BAD(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

// Outputs that the model writes into memory of the program: how often they are copied, and that all memory goes back.
static void places(TRITONSERVER_Server* server)
{
  static const struct {
    const char* id;
    int copies, allocations;
    bool fails;
  } cases[] = {
      {"as ever", 1, 1, false},        {"place", 0, 1, false},      {"place elsewhere", 1, 1, false},
      {"place larger", 1, 2, false},   {"place fail", 0, 1, true},  {"place keep", 0, 1, false},
      {"place elsewhere larger", 1, 2, false},
  };
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  OK(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, count_start));
  OK(TRITONSERVER_ResponseAllocatorSetQueryFunction(allocator, query));
  for (size_t index = 0; index < sizeof(cases) / sizeof(*cases); ++index) {
    TRITONSERVER_InferenceRequest* request = make_request(server, allocator, 0);
    bool keeps = strstr(cases[index].id, "keep") != NULL;
    uint64_t copies = repoagent_copied_outputs();
    allocations = frees = starts = 0;
    OK(TRITONSERVER_InferenceRequestSetId(request, cases[index].id));
    OK(TRITONSERVER_ServerInferAsync(server, request, NULL));
    CHECK((TRITONSERVER_InferenceResponseError(kept) != NULL) == cases[index].fails);
    if (!cases[index].fails) {
      look_at(kept, 1.0F);
    }
    OK(TRITONSERVER_InferenceResponseDelete(kept));
    CHECK(repoagent_copied_outputs() - copies == (uint64_t)cases[index].copies);
    CHECK(allocations == cases[index].allocations && starts == 1 && frees == allocations - keeps);
    if (keeps) {
      return_kept_place();
    }
    CHECK(frees == allocations);
    OK(TRITONSERVER_InferenceRequestDelete(request));
  }
  for (size_t how = 1; how < 3; ++how) {
    TRITONSERVER_InferenceRequest* request = make_request(server, allocator, how);
    allocations = frees = 0;
    OK(TRITONSERVER_InferenceRequestSetId(request, "place"));
    OK(TRITONSERVER_ServerInferAsync(server, request, NULL));
    TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(kept);
    CHECK(TRITONSERVER_ErrorCode(error) == (how == 1 ? TRITONSERVER_ERROR_INTERNAL : TRITONSERVER_ERROR_UNSUPPORTED));
    OK(TRITONSERVER_InferenceResponseDelete(kept));
    CHECK(allocations == 1 && frees == (how == 1 ? 0 : 1));
    OK(TRITONSERVER_InferenceRequestDelete(request));
  }
  OK(TRITONSERVER_ResponseAllocatorDelete(allocator));
}

static void messages(void)
{
  static const char* const good[] = {"{}", " [1, -2.5e+3, \"a\\u00e9\\n\", true, null, {\"a\": []}] ", "0", "\"\""};
  static const char* const wrong[] = {"", "{", "[1,]", "{\"a\"}", "01", "1.", "tru", "\"a", "\"\\x\"", "[] []", "'a'", "-"};
  TRITONSERVER_Message* message = NULL;
  const char* text;
  size_t size;
  for (size_t index = 0; index < sizeof(good) / sizeof(*good); ++index) {
    OK(TRITONSERVER_MessageNewFromSerializedJson(&message, good[index], strlen(good[index])));
    OK(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
    CHECK(size == strlen(good[index]) && strcmp(text, good[index]) == 0);
    OK(TRITONSERVER_MessageDelete(message));
    BAD(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  }
  for (size_t index = 0; index < sizeof(wrong) / sizeof(*wrong); ++index) {
    BAD(TRITONSERVER_MessageNewFromSerializedJson(&message, wrong[index], strlen(wrong[index])));
  }
  char deep[4000];
  memset(deep, '[', sizeof(deep));
  BAD(TRITONSERVER_MessageNewFromSerializedJson(&message, deep, sizeof(deep)));
}

static void metrics(void)
{
  static const double buckets[] = {1, 2, 3};
  double value = 0;
  for (int kind = 0; kind < 3; ++kind) {
    TRITONSERVER_MetricFamily* family = NULL;
    TRITONSERVER_Metric* metric = NULL;
    TRITONSERVER_MetricArgs* args = NULL;
    TRITONSERVER_Parameter* label = TRITONSERVER_ParameterNew("k", TRITONSERVER_PARAMETER_STRING, "v");
    const TRITONSERVER_Parameter* labels[] = {label};
    OK(TRITONSERVER_MetricFamilyNew(&family, (TRITONSERVER_MetricKind)kind, "name", "text"));
    OK(TRITONSERVER_MetricArgsNew(&args));
    OK(TRITONSERVER_MetricArgsSetHistogram(args, buckets, 3));
    OK(TRITONSERVER_MetricNewWithArgs(&metric, family, labels, 1, args));
    CHECK(failed(TRITONSERVER_MetricValue(metric, &value)) == (kind == 2));
    CHECK(failed(TRITONSERVER_MetricIncrement(metric, -1)) == (kind != 1));
    CHECK(failed(TRITONSERVER_MetricSet(metric, 1)) == (kind != 1));
    CHECK(failed(TRITONSERVER_MetricObserve(metric, 1)) == (kind != 2));
    BAD(TRITONSERVER_MetricFamilyDelete(family));
    OK(TRITONSERVER_MetricDelete(metric));
    OK(TRITONSERVER_MetricFamilyDelete(family));
    BAD(TRITONSERVER_MetricFamilyDelete(family));
    OK(TRITONSERVER_MetricArgsDelete(args));
    TRITONSERVER_ParameterDelete(label);
    TRITONSERVER_ParameterDelete(label);
  }
}

int main(void)
{
  use_stub();
  uint64_t before = repoagent_living_handles();
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  OK(TRITONSERVER_ServerOptionsNew(&options));
  OK(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, "/a \"path\"\n"));
  OK(TRITONSERVER_ServerOptionsSetLogFile(options, ""));
  OK(TRITONSERVER_ServerNew(&server, options));
  OK(TRITONSERVER_ServerOptionsDelete(options));
  requests(server);
  places(server);
  messages();
  metrics();
  OK(TRITONSERVER_ServerDelete(server));
  BAD(TRITONSERVER_ServerDelete(server));
  BAD(TRITONSERVER_ServerStop(server));
  CHECK(repoagent_living_handles() == before);
  printf("done\n");
  return 0;
}
