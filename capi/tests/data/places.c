// Counts how often outputs are copied on their way into buffers of the program. Argument: a repository whose models
// negate ROWS x WIDTH floats.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "triton/core/tritonserver.h"

uint64_t repoagent_copied_outputs(void);
uint64_t repoagent_living_handles(void);

enum { WIDTH = 1 << 15, MOST = 2 };

static size_t shift;
static int allocations, releases;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static TRITONSERVER_InferenceResponse* responses[MOST];
static int answered, given_back;
static float values[WIDTH];

#define MUST(call)                                                                    \
  do {                                                                                \
    TRITONSERVER_Error* fault = (call);                                               \
    if (fault != NULL) {                                                              \
      printf("line %d: %s\n", __LINE__, TRITONSERVER_ErrorMessage(fault));            \
      exit(1);                                                                        \
    }                                                                                 \
  } while (0)

// Memory that begins `shift` bytes behind an address that backends like.
static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType type, int64_t id,
    void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id)
{
  void* base = NULL;
  (void)allocator, (void)name, (void)type, (void)id, (void)userp;
  if (posix_memalign(&base, 4096, size + 4096) != 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "no memory");
  }
  *buffer = (char*)base + shift;
  *buffer_userp = base;
  *actual = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  ++allocations;
  return NULL;
}

static TRITONSERVER_Error* release(
    TRITONSERVER_ResponseAllocator* allocator, void* buffer, void* userp, size_t size, TRITONSERVER_MemoryType type,
    int64_t id)
{
  (void)allocator, (void)buffer, (void)size, (void)type, (void)id;
  free(userp);
  ++releases;
  return NULL;
}

static void complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  (void)flags, (void)userp;
  pthread_mutex_lock(&lock);
  responses[answered++] = response;
  pthread_mutex_unlock(&lock);
}

static void give_back(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
  (void)flags, (void)userp;
  MUST(TRITONSERVER_InferenceRequestDelete(request));
  pthread_mutex_lock(&lock);
  ++given_back;
  pthread_cond_signal(&changed);
  pthread_mutex_unlock(&lock);
}

static void submit(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, const char* model, int64_t width)
{
  const int64_t shape[2] = {1, width};
  TRITONSERVER_InferenceRequest* request = NULL;
  MUST(TRITONSERVER_InferenceRequestNew(&request, server, model, -1));
  MUST(TRITONSERVER_InferenceRequestAddInput(request, "x", TRITONSERVER_TYPE_FP32, shape, 2));
  MUST(TRITONSERVER_InferenceRequestAppendInputData(
      request, "x", values, (size_t)width * sizeof(float), TRITONSERVER_MEMORY_CPU, 0));
  MUST(TRITONSERVER_InferenceRequestSetReleaseCallback(request, give_back, NULL));
  MUST(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, complete, NULL));
  MUST(TRITONSERVER_ServerInferAsync(server, request, NULL));
}

static int is_right(TRITONSERVER_InferenceResponse* response, int64_t width)
{
  const char* name;
  TRITONSERVER_DataType type;
  const int64_t* shape;
  uint64_t dims;
  const void* base;
  size_t size;
  TRITONSERVER_MemoryType memory;
  int64_t place;
  void* userp;
  MUST(TRITONSERVER_InferenceResponseError(response));
  MUST(TRITONSERVER_InferenceResponseOutput(
      response, 0, &name, &type, &shape, &dims, &base, &size, &memory, &place, &userp));
  int right = size == (size_t)width * sizeof(float) && (const char*)base == (const char*)userp + shift;
  for (int64_t index = 0; right && index < width; ++index) {
    right = ((const float*)base)[index] == -values[index];
  }
  return right;
}

static void run(
    TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator, const char* what, const char* model,
    int64_t width, int count)
{
  uint64_t before = repoagent_copied_outputs();
  int right = 0;
  allocations = releases = answered = given_back = 0;
  for (int index = 0; index < count; ++index) {
    submit(server, allocator, model, width);
  }
  pthread_mutex_lock(&lock);
  while (given_back < count) {
    pthread_cond_wait(&changed, &lock);
  }
  pthread_mutex_unlock(&lock);
  for (int index = 0; index < count; ++index) {
    right += is_right(responses[index], width);
  }
  if (releases != 0) {
    printf("released before the response was deleted\n");
  }
  for (int index = 0; index < count; ++index) {
    MUST(TRITONSERVER_InferenceResponseDelete(responses[index]));
  }
  printf(
      "%s: right %d, copied %d, allocated %d, released %d\n", what, right, (int)(repoagent_copied_outputs() - before),
      allocations, releases);
}

int main(int count, char** arguments)
{
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  (void)count;
  for (int index = 0; index < WIDTH; ++index) {
    values[index] = (float)index;
  }
  MUST(TRITONSERVER_ServerOptionsNew(&options));
  MUST(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, arguments[1]));
  MUST(TRITONSERVER_ServerNew(&server, options));
  MUST(TRITONSERVER_ServerOptionsDelete(options));
  MUST(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release, NULL));
  run(server, allocator, "large", "large", WIDTH, 1);
  run(server, allocator, "in a batch", "batched", WIDTH, 2);
  run(server, allocator, "of variable size", "variable", WIDTH, 1);
  run(server, allocator, "small", "small", 16, 1);
  run(server, allocator, "large again", "large", WIDTH, 1);
  shift = 16;
  run(server, allocator, "unaligned", "large", WIDTH, 1);
  MUST(TRITONSERVER_ResponseAllocatorDelete(allocator));
  MUST(TRITONSERVER_ServerDelete(server));
  printf("handles: %d\n", (int)repoagent_living_handles());
  return 0;
}
