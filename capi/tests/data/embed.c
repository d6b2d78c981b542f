// A C program with a server in it. Usage: embed MODE REPOSITORY [AGENTS]. Prints what it sees; exits 1 on an error.
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "triton/core/tritonserver.h"

__attribute__((__visibility__("default"))) uint64_t repoagent_living_handles(void);

#define MUST(call) must(call, #call)

static void must(TRITONSERVER_Error* error, const char* what)
{
  if (error != NULL) {
    printf("%s: %s: %s\n", what, TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    fflush(stdout);
    _exit(1);
  }
}

static void show(TRITONSERVER_Error* error, const char* what)
{
  printf(
      "%s: %s%s%s\n", what, error == NULL ? "ok" : TRITONSERVER_ErrorCodeString(error), error == NULL ? "" : ": ",
      error == NULL ? "" : TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
}

static TRITONSERVER_Server* start(const char* repository, const char* agents)
{
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  MUST(TRITONSERVER_ServerOptionsNew(&options));
  MUST(TRITONSERVER_ServerOptionsSetServerId(options, "embedded"));
  MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, repository));
  MUST(TRITONSERVER_ServerOptionsSetModelControlMode(options, TRITONSERVER_MODEL_CONTROL_EXPLICIT));
  MUST(TRITONSERVER_ServerOptionsSetCudaVirtualAddressSize(options, 0, 1 << 20));
  MUST(TRITONSERVER_ServerOptionsSetModelConfigName(options, "other"));
  MUST(TRITONSERVER_ServerOptionsSetBackendConfig(options, "", "key", "value"));
  if (agents != NULL) {
    MUST(TRITONSERVER_ServerOptionsSetRepoAgentDirectory(options, agents));
  }
  MUST(TRITONSERVER_ServerNew(&server, options));
  MUST(TRITONSERVER_ServerOptionsDelete(options));
  return server;
}

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType type, int64_t id,
    void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id)
{
  (void)allocator, (void)name, (void)userp;
  *buffer = malloc(size);
  *buffer_userp = NULL;
  *actual = type;
  *actual_id = id;
  return NULL;
}

static TRITONSERVER_Error* release_buffer(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* userp, size_t size, TRITONSERVER_MemoryType type,
    int64_t id)
{
  (void)allocator, (void)userp, (void)size, (void)type, (void)id;
  free(buffer);
  return NULL;
}

struct waiting {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  TRITONSERVER_InferenceResponse* responses[64];
  int count;
  int finals;
  int released;
};

static void complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  struct waiting* waiting = userp;
  pthread_mutex_lock(&waiting->lock);
  if (response != NULL) {
    waiting->responses[waiting->count++] = response;
  }
  waiting->finals += (flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0;
  pthread_mutex_unlock(&waiting->lock);
}

static void on_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
  struct waiting* waiting = userp;
  (void)request, (void)flags;
  pthread_mutex_lock(&waiting->lock);
  ++waiting->released;
  pthread_cond_broadcast(&waiting->changed);
  pthread_mutex_unlock(&waiting->lock);
}

static TRITONSERVER_ResponseAllocator* allocator;

static void wait_for(struct waiting* waiting)
{
  pthread_mutex_lock(&waiting->lock);
  while (waiting->released == 0) {
    pthread_cond_wait(&waiting->changed, &waiting->lock);
  }
  pthread_mutex_unlock(&waiting->lock);
}

static void prepare(struct waiting* waiting, TRITONSERVER_InferenceRequest* request)
{
  memset(waiting, 0, sizeof(*waiting));
  pthread_mutex_init(&waiting->lock, NULL);
  pthread_cond_init(&waiting->changed, NULL);
  MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_release, waiting));
  MUST(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, complete, waiting));
}

static void print_response(TRITONSERVER_InferenceResponse* response)
{
  TRITONSERVER_Error* error = TRITONSERVER_InferenceResponseError(response);
  const char *model, *id, *name;
  int64_t version;
  uint32_t outputs, parameters;
  if (error != NULL) {
    printf("response: %s: %s\n", TRITONSERVER_ErrorCodeString(error), TRITONSERVER_ErrorMessage(error));
    MUST(TRITONSERVER_InferenceResponseDelete(response));
    return;
  }
  MUST(TRITONSERVER_InferenceResponseModel(response, &model, &version));
  MUST(TRITONSERVER_InferenceResponseId(response, &id));
  MUST(TRITONSERVER_InferenceResponseOutputCount(response, &outputs));
  MUST(TRITONSERVER_InferenceResponseParameterCount(response, &parameters));
  printf("response: %s %d '%s'", model, (int)version, id);
  for (uint32_t index = 0; index < outputs; ++index) {
    TRITONSERVER_DataType type;
    const int64_t* shape;
    uint64_t dims;
    const void* base;
    size_t size;
    TRITONSERVER_MemoryType memory;
    int64_t place;
    void* userp;
    MUST(TRITONSERVER_InferenceResponseOutput(
        response, index, &name, &type, &shape, &dims, &base, &size, &memory, &place, &userp));
    printf(" %s %s[", name, TRITONSERVER_DataTypeString(type));
    for (uint64_t dim = 0; dim < dims; ++dim) {
      printf(dim == 0 ? "%d" : ",%d", (int)shape[dim]);
    }
    printf("]");
    for (size_t item = 0; type == TRITONSERVER_TYPE_FP32 && item < size / 4; ++item) {
      printf(" %g", (double)((const float*)base)[item]);
    }
    for (size_t item = 0; type == TRITONSERVER_TYPE_INT32 && item < size / 4; ++item) {
      printf(" %d", ((const int*)base)[item]);
    }
    for (size_t item = 0; type == TRITONSERVER_TYPE_BYTES && item < size; ++item) {
      printf(((const char*)base)[item] < 32 ? "." : "%c", ((const char*)base)[item]);
    }
  }
  for (uint32_t index = 0; index < parameters; ++index) {
    TRITONSERVER_ParameterType type;
    const void* value;
    MUST(TRITONSERVER_InferenceResponseParameter(response, index, &name, &type, &value));
    if (type == TRITONSERVER_PARAMETER_STRING) {
      printf(" %s=%s", name, (const char*)value);
    } else if (type == TRITONSERVER_PARAMETER_INT) {
      printf(" %s=%d", name, (int)*(const int64_t*)value);
    } else if (type == TRITONSERVER_PARAMETER_BOOL) {
      printf(" %s=%s", name, *(const bool*)value ? "true" : "false");
    }
  }
  printf("\n");
  MUST(TRITONSERVER_InferenceResponseDelete(response));
}

static void infer(TRITONSERVER_Server* server, TRITONSERVER_InferenceRequest* request, TRITONSERVER_InferenceTrace* trace)
{
  struct waiting waiting;
  prepare(&waiting, request);
  TRITONSERVER_Error* error = TRITONSERVER_ServerInferAsync(server, request, trace);
  if (error != NULL) {
    show(error, "infer");
    return;
  }
  wait_for(&waiting);
  for (int index = 0; index < waiting.count; ++index) {
    print_response(waiting.responses[index]);
  }
  if (waiting.finals != 1 || waiting.released != 1) {
    printf("finals: %d, released: %d\n", waiting.finals, waiting.released);
  }
}

static void document(const char* what, TRITONSERVER_Message* message)
{
  const char* text;
  size_t size;
  MUST(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  printf("%s: %.*s\n", what, (int)size, text);
  MUST(TRITONSERVER_MessageDelete(message));
}

static TRITONSERVER_InferenceRequest* new_request(TRITONSERVER_Server* server, const char* model)
{
  TRITONSERVER_InferenceRequest* request = NULL;
  MUST(TRITONSERVER_InferenceRequestNew(&request, server, model, -1));
  return request;
}

static const float VALUES[4] = {1, 2, 3, 4};
static const int64_t FOUR[1] = {4};

static TRITONSERVER_InferenceRequest* identity_request(TRITONSERVER_Server* server, const char* model)
{
  TRITONSERVER_InferenceRequest* request = new_request(server, model);
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, FOUR, 1));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", VALUES, sizeof(VALUES), TRITONSERVER_MEMORY_CPU, 0));
  return request;
}

// --- requests of every kind ------------------------------------------------------------------------------------------

static void on_activity(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, uint64_t at, void* userp)
{
  uint64_t id, parent;
  const char* model;
  (void)userp, (void)at;
  MUST(TRITONSERVER_InferenceTraceId(trace, &id));
  MUST(TRITONSERVER_InferenceTraceParentId(trace, &parent));
  MUST(TRITONSERVER_InferenceTraceModelName(trace, &model));
  printf("trace %d<%d %s: %s\n", (int)id, (int)parent, model, TRITONSERVER_InferenceTraceActivityString(activity));
}

static void on_tensor(
    TRITONSERVER_InferenceTrace* trace, TRITONSERVER_InferenceTraceActivity activity, const char* name,
    TRITONSERVER_DataType type, const void* base, size_t size, const int64_t* shape, uint64_t dims,
    TRITONSERVER_MemoryType memory, int64_t place, void* userp)
{
  (void)trace, (void)shape, (void)dims, (void)memory, (void)place, (void)userp;
  printf(
      "tensor %s: %s %s %d %s\n", TRITONSERVER_InferenceTraceActivityString(activity), name,
      TRITONSERVER_DataTypeString(type), (int)size, base == (const void*)VALUES ? "in place" : "copied");
}

static void on_trace_release(TRITONSERVER_InferenceTrace* trace, void* userp)
{
  uint64_t id;
  (void)userp;
  MUST(TRITONSERVER_InferenceTraceId(trace, &id));
  printf("trace %d released\n", (int)id);
  MUST(TRITONSERVER_InferenceTraceDelete(trace));
}

static void traced(TRITONSERVER_Server* server, const char* model)
{
  TRITONSERVER_InferenceTrace* trace = NULL;
  TRITONSERVER_InferenceRequest* request = identity_request(server, model);
  MUST(TRITONSERVER_InferenceTraceTensorNew(
      &trace, TRITONSERVER_TRACE_LEVEL_TIMESTAMPS | TRITONSERVER_TRACE_LEVEL_TENSORS, 77, on_activity, on_tensor,
      on_trace_release, NULL));
  infer(server, request, trace);
  MUST(TRITONSERVER_InferenceRequestDelete(request));
}

static void cancelled(TRITONSERVER_Server* server)
{
  struct waiting busy, waiting;
  bool is = false;
  TRITONSERVER_InferenceRequest* first = identity_request(server, "endless");
  TRITONSERVER_InferenceRequest* second = identity_request(server, "endless");
  prepare(&busy, first);
  prepare(&waiting, second);
  MUST(TRITONSERVER_ServerInferAsync(server, first, NULL));
  MUST(TRITONSERVER_ServerInferAsync(server, second, NULL));
  show(TRITONSERVER_InferenceRequestSetId(second, "late"), "change while it runs");
  show(TRITONSERVER_ServerInferAsync(server, second, NULL), "submit while it runs");
  show(TRITONSERVER_InferenceRequestDelete(second), "delete while it runs");
  MUST(TRITONSERVER_InferenceRequestCancel(second));
  MUST(TRITONSERVER_InferenceRequestIsCancelled(second, &is));
  wait_for(&waiting);
  printf("cancelled: %d, answered before the other: %d\n", (int)is, busy.released == 0);
  print_response(waiting.responses[0]);
  MUST(TRITONSERVER_InferenceRequestCancel(first));
  wait_for(&busy);
  print_response(busy.responses[0]);
  MUST(TRITONSERVER_InferenceRequestDelete(first));
  MUST(TRITONSERVER_InferenceRequestDelete(second));
}

struct early {
  struct waiting waiting;
  TRITONSERVER_InferenceRequest* request;
};

static void complete_and_delete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  struct early* early = userp;
  complete(response, flags, &early->waiting);
  if ((flags & TRITONSERVER_RESPONSE_COMPLETE_FINAL) != 0) {
    show(TRITONSERVER_InferenceRequestDelete(early->request), "delete after the last response");
    show(TRITONSERVER_InferenceRequestDelete(early->request), "delete it again");
  }
}

// As programs for Triton do that wait for the last response, and not for the release.
static void deleted_early(TRITONSERVER_Server* server)
{
  struct early early = {.request = identity_request(server, "identity")};
  prepare(&early.waiting, early.request);
  MUST(TRITONSERVER_InferenceRequestSetResponseCallback(early.request, allocator, NULL, complete_and_delete, &early));
  MUST(TRITONSERVER_ServerInferAsync(server, early.request, NULL));
  wait_for(&early.waiting);
  print_response(early.waiting.responses[0]);
}

static void with_host_policies(TRITONSERVER_Server* server)
{
  TRITONSERVER_InferenceRequest* request = identity_request(server, "identity");
  MUST(TRITONSERVER_InferenceRequestSetId(request, "policies"));
  MUST(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
      request, "INPUT0", VALUES + 2, 8, TRITONSERVER_MEMORY_CPU, 0, "cpu"));
  MUST(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
      request, "INPUT0", VALUES, 16, TRITONSERVER_MEMORY_CPU, 0, "gpu_0"));
  MUST(TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
      request, "INPUT0", VALUES, 8, TRITONSERVER_MEMORY_CPU, 0, "cpu"));
  infer(server, request, NULL);
  MUST(TRITONSERVER_InferenceRequestDelete(request));
}

static void without_callbacks(TRITONSERVER_Server* server)
{
  TRITONSERVER_InferenceRequest* request = identity_request(server, "identity");
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", VALUES, 8, TRITONSERVER_MEMORY_CPU, 0));
  show(TRITONSERVER_ServerInferAsync(server, request, NULL), "without callbacks, too long");
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputData(request, "INPUT0"));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", VALUES, 16, TRITONSERVER_MEMORY_CPU, 0));
  show(TRITONSERVER_ServerInferAsync(server, request, NULL), "without callbacks");
  infer(server, request, NULL);
  MUST(TRITONSERVER_InferenceRequestDelete(request));
}

static int tour(const char* repository)
{
  TRITONSERVER_Server* server = start(repository, NULL);
  TRITONSERVER_Message* message = NULL;
  bool yes = false;
  static const char* const models[] = {"identity", "words", "repeat", "endless", "wrapped"};
  for (size_t index = 0; index < sizeof(models) / sizeof(*models); ++index) {
    MUST(TRITONSERVER_ServerLoadModel(server, models[index]));
  }
  show(TRITONSERVER_ServerLoadModel(server, "nothing"), "load nothing");
  MUST(TRITONSERVER_ServerModelIsReady(server, "identity", -1, &yes));
  MUST(TRITONSERVER_ServerMetadata(server, &message));
  document("server", message);
  MUST(TRITONSERVER_ServerModelMetadata(server, "identity", -1, &message));
  document("model", message);
  MUST(TRITONSERVER_ServerModelIndex(server, TRITONSERVER_INDEX_FLAG_READY, &message));
  document("index", message);
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, NULL));

  TRITONSERVER_InferenceRequest* request = identity_request(server, "identity");
  MUST(TRITONSERVER_InferenceRequestSetId(request, "one"));
  infer(server, request, NULL);
  MUST(TRITONSERVER_InferenceRequestSetId(request, "again, in two pieces"));
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputData(request, "INPUT0"));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", VALUES + 2, 8, TRITONSERVER_MEMORY_CPU, 0));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", VALUES, 8, TRITONSERVER_MEMORY_CPU_PINNED, 0));
  infer(server, request, NULL);
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", VALUES, 8, TRITONSERVER_MEMORY_CPU, 0));
  infer(server, request, NULL);
  MUST(TRITONSERVER_InferenceRequestRemoveAllInputs(request));
  infer(server, request, NULL);
  MUST(TRITONSERVER_InferenceRequestDelete(request));

  request = new_request(server, "words");
  static const int64_t two[1] = {2};
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_BYTES, two, 1));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", "\3\0\0\0one\3\0\0\0two", 14, TRITONSERVER_MEMORY_CPU, 0));
  infer(server, request, NULL);
  MUST(TRITONSERVER_InferenceRequestDelete(request));

  request = new_request(server, "repeat");
  static const int numbers[3] = {7, 8, 9};
  static const unsigned delays[3] = {0, 0, 0};
  static const unsigned once[1] = {0};
  static const int64_t three[1] = {3}, single[1] = {1};
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "IN", TRITONSERVER_TYPE_INT32, three, 1));
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "DELAY", TRITONSERVER_TYPE_UINT32, three, 1));
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "WAIT", TRITONSERVER_TYPE_UINT32, single, 1));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "IN", numbers, 12, TRITONSERVER_MEMORY_CPU, 0));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "DELAY", delays, 12, TRITONSERVER_MEMORY_CPU, 0));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "WAIT", once, 4, TRITONSERVER_MEMORY_CPU, 0));
  infer(server, request, NULL);
  MUST(TRITONSERVER_InferenceRequestDelete(request));

  traced(server, "identity");
  traced(server, "wrapped");
  cancelled(server);
  deleted_early(server);
  with_host_policies(server);
  without_callbacks(server);
  MUST(TRITONSERVER_ServerUnloadModel(server, "identity"));
  show(TRITONSERVER_InferenceRequestNew(&request, server, "identity", -1), "request to an unloaded model");
  MUST(TRITONSERVER_ServerSetExitTimeout(server, 60));
  MUST(TRITONSERVER_ServerStop(server));
  show(TRITONSERVER_InferenceRequestNew(&request, server, "words", -1), "request to a stopped server");
  MUST(TRITONSERVER_ServerDelete(server));
  show(TRITONSERVER_ServerIsLive(server, &yes), "question to a deleted server");
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
  printf("handles: %d\n", (int)repoagent_living_handles());
  return 0;
}

// --- many threads, and callbacks that call back in -------------------------------------------------------------------

enum { THREADS = 32, ROUNDS = 20 };
static atomic_int done, wrong;
static pthread_mutex_t done_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t all_done = PTHREAD_COND_INITIALIZER;
static TRITONSERVER_Server* shared;

static void on_shared_release(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
  (void)flags, (void)userp;
  MUST(TRITONSERVER_InferenceRequestDelete(request));
  pthread_mutex_lock(&done_lock);
  ++done;
  pthread_cond_signal(&all_done);
  pthread_mutex_unlock(&done_lock);
}

static void check_and_go_on(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp);

static void send_one(intptr_t left)
{
  TRITONSERVER_InferenceRequest* request = identity_request(shared, "identity");
  MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(request, on_shared_release, NULL));
  MUST(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, check_and_go_on, (void*)left));
  MUST(TRITONSERVER_ServerInferAsync(shared, request, NULL));
}

// From within the callback: questions, a stop that must be refused, and the next request.
static void check_and_go_on(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  intptr_t left = (intptr_t)userp;
  bool ready = false;
  uint32_t outputs = 0;
  (void)flags;
  MUST(TRITONSERVER_InferenceResponseOutputCount(response, &outputs));
  MUST(TRITONSERVER_ServerIsReady(shared, &ready));
  TRITONSERVER_Error* refused = TRITONSERVER_ServerStop(shared);
  wrong += outputs != 1 || !ready || refused == NULL;
  TRITONSERVER_ErrorDelete(refused);
  MUST(TRITONSERVER_InferenceResponseDelete(response));
  if (left > 0) {
    send_one(left - 1);
  }
}

static void* one_thread(void* nothing)
{
  send_one(ROUNDS - 1);
  return nothing;
}

static int threads(const char* repository)
{
  pthread_t all[THREADS];
  shared = start(repository, NULL);
  MUST(TRITONSERVER_ServerLoadModel(shared, "identity"));
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, NULL));
  for (int index = 0; index < THREADS; ++index) {
    pthread_create(&all[index], NULL, one_thread, NULL);
  }
  for (int index = 0; index < THREADS; ++index) {
    pthread_join(all[index], NULL);
  }
  pthread_mutex_lock(&done_lock);
  while (done < THREADS * ROUNDS) {
    pthread_cond_wait(&all_done, &done_lock);
  }
  pthread_mutex_unlock(&done_lock);
  MUST(TRITONSERVER_ServerStop(shared));
  MUST(TRITONSERVER_ServerDelete(shared));
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
  printf("done: %d, wrong: %d, handles: %d\n", (int)done, (int)wrong, (int)repoagent_living_handles());
  return 0;
}

// --- processes -------------------------------------------------------------------------------------------------------

static int fork_first(const char* repository)
{
  TRITONSERVER_Message* message = NULL;
  MUST(TRITONSERVER_MessageNewFromSerializedJson(&message, "{}", 2));
  int status = 0;
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    TRITONSERVER_Server* server = start(repository, NULL);
    MUST(TRITONSERVER_ServerDelete(server));
    exit(0);
  }
  TRITONSERVER_Server* server = start(repository, NULL);
  waitpid(child, &status, 0);
  printf("child: %d\n", status);
  fflush(stdout);
  child = fork();
  if (child == 0) {
    bool live = false;
    show(TRITONSERVER_ServerIsLive(server, &live), "in a child of a server");
    fflush(stdout);
    exit(0);
  }
  waitpid(child, &status, 0);
  printf("second child: %d\n", status);
  MUST(TRITONSERVER_ServerDelete(server));
  return 0;
}

static long resident_kib(void)
{
  char line[256];
  long found = 0;
  FILE* status = fopen("/proc/self/status", "r");
  while (fgets(line, sizeof(line), status) != NULL) {
    if (strncmp(line, "VmRSS:", 6) == 0) {
      found = atol(line + 6);
    }
  }
  fclose(status);
  return found;
}

static int again_and_again(const char* repository, int rounds)
{
  long before = 0;
  for (int round = 0; round < rounds; ++round) {
    TRITONSERVER_Server* server = start(repository, NULL);
    MUST(TRITONSERVER_ServerLoadModel(server, "identity"));
    MUST(TRITONSERVER_ServerDelete(server));
    if (round == rounds / 2) {
      before = resident_kib();
    }
  }
  printf("handles: %d, KiB more: %ld\n", (int)repoagent_living_handles(), resident_kib() - before);
  return 0;
}

// Two servers in one process, used at the same time; the second goes on without the first.
static int two(const char* repository)
{
  TRITONSERVER_Server* servers[2] = {start(repository, NULL), start(repository, NULL)};
  TRITONSERVER_InferenceRequest* requests[2];
  struct waiting waiting[2];
  bool ready = false;
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, NULL));
  MUST(TRITONSERVER_ServerLoadModel(servers[0], "slow"));
  show(TRITONSERVER_InferenceRequestNew(&requests[1], servers[1], "slow", -1), "a model of the other server");
  MUST(TRITONSERVER_ServerLoadModel(servers[1], "slow"));
  for (int index = 0; index < 2; ++index) {
    requests[index] = identity_request(servers[index], "slow");
    prepare(&waiting[index], requests[index]);
  }
  show(TRITONSERVER_ServerInferAsync(servers[1], requests[0], NULL), "a request of the other server");
  for (int index = 0; index < 2; ++index) {
    MUST(TRITONSERVER_ServerInferAsync(servers[index], requests[index], NULL));
  }
  for (int index = 0; index < 2; ++index) {
    wait_for(&waiting[index]);
    print_response(waiting[index].responses[0]);
  }
  MUST(TRITONSERVER_InferenceRequestDelete(requests[0]));
  MUST(TRITONSERVER_ServerDelete(servers[0]));
  MUST(TRITONSERVER_ServerModelIsReady(servers[1], "slow", -1, &ready));
  printf("the second is ready: %d\n", ready);
  infer(servers[1], requests[1], NULL);
  MUST(TRITONSERVER_InferenceRequestDelete(requests[1]));
  MUST(TRITONSERVER_ServerDelete(servers[1]));
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
  printf("handles: %d\n", (int)repoagent_living_handles());
  return 0;
}

static int operate(const char* repository, const char* other)
{
  static const double buckets[] = {1, 10};
  static const char config[] = "{\"backend\": \"identity\", \"input\": [{\"name\": \"INPUT0\", \"data_type\": "
                               "\"TYPE_FP32\", \"dims\": [4]}], \"output\": [{\"name\": \"OUTPUT0\", \"data_type\": "
                               "\"TYPE_FP32\", \"dims\": [4]}]}";
  const char *text = "", *line;
  size_t size = 0;
  uint32_t flags = 0;
  void* nothing = NULL;
  TRITONSERVER_MetricFamily* family = NULL;
  TRITONSERVER_Metric* metric = NULL;
  TRITONSERVER_MetricArgs* args = NULL;
  TRITONSERVER_Metrics* page = NULL;
  TRITONSERVER_Message* message = NULL;
  TRITONSERVER_Server* server = start(repository, NULL);
  TRITONSERVER_Parameter* label = TRITONSERVER_ParameterNew("where", TRITONSERVER_PARAMETER_STRING, "here");
  TRITONSERVER_Parameter* mapping = TRITONSERVER_ParameterNew("inner", TRITONSERVER_PARAMETER_STRING, "outer");
  TRITONSERVER_Parameter* loaded = TRITONSERVER_ParameterNew("config", TRITONSERVER_PARAMETER_STRING, config);
  TRITONSERVER_Parameter* file = TRITONSERVER_ParameterBytesNew("file:1/data", "bytes", 5);
  const TRITONSERVER_Parameter *labels[] = {label}, *mappings[] = {mapping}, *parameters[] = {loaded, file};
  MUST(TRITONSERVER_MetricFamilyNew(&family, TRITONSERVER_METRIC_KIND_HISTOGRAM, "my_times", "Times of mine"));
  TRITONSERVER_MetricFamily* described = NULL;
  show(
      TRITONSERVER_MetricFamilyNew(&described, TRITONSERVER_METRIC_KIND_HISTOGRAM, "my_times", "In other words"),
      "described in another way");
  MUST(TRITONSERVER_MetricFamilyDelete(described));
  show(
      TRITONSERVER_MetricFamilyNew(&described, TRITONSERVER_METRIC_KIND_GAUGE, "my_times", "Times of mine"),
      "of another kind");
  show(TRITONSERVER_MetricArgsDelete(NULL), "no arguments deleted");
  MUST(TRITONSERVER_MetricArgsNew(&args));
  MUST(TRITONSERVER_MetricArgsSetHistogram(args, buckets, 2));
  MUST(TRITONSERVER_MetricNewWithArgs(&metric, family, labels, 1, args));
  MUST(TRITONSERVER_MetricObserve(metric, 0.5));
  MUST(TRITONSERVER_MetricObserve(metric, 5));
  show(TRITONSERVER_MetricSet(metric, 5), "set a histogram");
  MUST(TRITONSERVER_ServerMetrics(server, &page));
  MUST(TRITONSERVER_MetricsFormatted(page, TRITONSERVER_METRIC_PROMETHEUS, &text, &size));
  for (line = strstr(text, "my_times_"); line != NULL; line = strstr(line + 1, "\nmy_times_")) {
    line += *line == '\n';
    printf("metric: %.*s\n", (int)strcspn(line, "\n"), line);
  }
  MUST(TRITONSERVER_MetricsDelete(page));
  MUST(TRITONSERVER_MetricDelete(metric));
  MUST(TRITONSERVER_MetricFamilyDelete(family));
  MUST(TRITONSERVER_MetricArgsDelete(args));

  MUST(TRITONSERVER_ServerRegisterModelRepository(server, other, mappings, 1));
  show(TRITONSERVER_ServerRegisterModelRepository(server, other, NULL, 0), "again");
  MUST(TRITONSERVER_ServerLoadModel(server, "outer"));
  MUST(TRITONSERVER_ServerModelBatchProperties(server, "outer", -1, &flags, &nothing));
  printf("batch: %u", flags);
  MUST(TRITONSERVER_ServerModelTransactionProperties(server, "outer", -1, &flags, &nothing));
  printf(", transaction: %u\n", flags);
  MUST(TRITONSERVER_ServerUnregisterModelRepository(server, other));
  show(TRITONSERVER_ServerPollModelRepository(server), "poll");
  MUST(TRITONSERVER_ServerLoadModelWithParameters(server, "sent", parameters, 2));
  MUST(TRITONSERVER_ServerModelConfig(server, "sent", 1, 1, &message));
  MUST(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  printf("sent: %d\n", strstr(text, "\"backend\":\"identity\"") != NULL);
  MUST(TRITONSERVER_MessageDelete(message));
  MUST(TRITONSERVER_ServerModelStatistics(server, "sent", 1, &message));
  MUST(TRITONSERVER_MessageDelete(message));
  TRITONSERVER_InferenceRequest* request = new_request(server, "outer");
  MUST(TRITONSERVER_InferenceRequestAddRawInput(request, "INPUT0"));
  show(
      TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", VALUES, 16, TRITONSERVER_MEMORY_GPU, 0),
      "data on a GPU");
  MUST(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", VALUES, 16, TRITONSERVER_MEMORY_CPU, 0));
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, NULL));
  infer(server, request, NULL);
  MUST(TRITONSERVER_InferenceRequestDelete(request));
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
  MUST(TRITONSERVER_ServerUnloadModelAndDependents(server, "outer"));
  printf("log: %d %d\n", TRITONSERVER_LogIsEnabled(TRITONSERVER_LOG_ERROR), TRITONSERVER_LogIsEnabled(TRITONSERVER_LOG_VERBOSE));
  MUST(TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, "here.c", 7, "a line of C"));
  MUST(TRITONSERVER_ServerDelete(server));
  TRITONSERVER_ParameterDelete(label);
  TRITONSERVER_ParameterDelete(mapping);
  TRITONSERVER_ParameterDelete(loaded);
  TRITONSERVER_ParameterDelete(file);
  printf("handles: %d\n", (int)repoagent_living_handles());
  return 0;
}

// A callback that reloads the very model that answers, and one that unloads it.
static void reload_it(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  char path[4096];
  snprintf(path, sizeof(path), "%s/identity/1/changed", (const char*)userp);
  FILE* file = fopen(path, "w");
  (void)flags;
  if (file != NULL) {
    fputs("changed", file);
    fclose(file);
  }
  show(TRITONSERVER_ServerLoadModel(shared, "identity"), "reload within a callback");
  show(TRITONSERVER_ServerUnloadModel(shared, "identity"), "unload within a callback");
  MUST(TRITONSERVER_InferenceResponseDelete(response));
}

static int reload(const char* repository)
{
  struct waiting waiting;
  shared = start(repository, NULL);
  MUST(TRITONSERVER_ServerLoadModel(shared, "identity"));
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, NULL));
  TRITONSERVER_InferenceRequest* request = identity_request(shared, "identity");
  for (int round = 0; round < 20; ++round) {
    infer(shared, request, NULL);  // until the model is known to be quick, and runs on this thread
  }
  prepare(&waiting, request);
  MUST(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, reload_it, (void*)repository));
  MUST(TRITONSERVER_ServerInferAsync(shared, request, NULL));
  wait_for(&waiting);
  MUST(TRITONSERVER_InferenceRequestDelete(request));
  MUST(TRITONSERVER_ServerDelete(shared));
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
  return 0;
}

static int signals(const char* repository)
{
  struct sigaction before[NSIG], after[NSIG];
  int changed = 0;
  for (int number = 1; number < NSIG; ++number) {
    sigaction(number, NULL, &before[number]);
  }
  TRITONSERVER_Server* server = start(repository, NULL);
  MUST(TRITONSERVER_ServerLoadModel(server, "identity"));
  for (int number = 1; number < NSIG; ++number) {
    sigaction(number, NULL, &after[number]);
    changed += before[number].sa_handler != after[number].sa_handler;
  }
  MUST(TRITONSERVER_ServerDelete(server));
  printf("changed: %d\n", changed);
  return 0;
}

static int forget(const char* repository, const char* agents)
{
  TRITONSERVER_Server* server = start(repository, agents);
  MUST(TRITONSERVER_ServerLoadModel(server, "guarded"));
  return 0;  // exit stops the server, so that the agent gets its UNLOAD
}

int main(int count, char** arguments)
{
  const char* mode = count > 2 ? arguments[1] : "";
  if (strcmp(mode, "tour") == 0) {
    return tour(arguments[2]);
  }
  if (strcmp(mode, "threads") == 0) {
    return threads(arguments[2]);
  }
  if (strcmp(mode, "two") == 0) {
    return two(arguments[2]);
  }
  if (strcmp(mode, "fork") == 0) {
    return fork_first(arguments[2]);
  }
  if (strcmp(mode, "again") == 0) {
    return again_and_again(arguments[2], atoi(arguments[3]));
  }
  if (strcmp(mode, "operate") == 0) {
    return operate(arguments[2], arguments[3]);
  }
  if (strcmp(mode, "reload") == 0) {
    return reload(arguments[2]);
  }
  if (strcmp(mode, "signals") == 0) {
    return signals(arguments[2]);
  }
  if (strcmp(mode, "forget") == 0) {
    return forget(arguments[2], arguments[3]);
  }
  return 2;
}
