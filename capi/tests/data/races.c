// Threads that use, delete and ask at once, over the stub table, for a sanitizer to watch. Argument: rounds.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "stub_core.h"

enum { THREADS = 8 };

static pthread_barrier_t together;
static atomic_int deleted, answered, released;
static TRITONSERVER_Server* server;
static TRITONSERVER_ResponseAllocator* allocator;
static TRITONSERVER_Message* message;
static TRITONSERVER_InferenceRequest* request;
static TRITONSERVER_ServerOptions* options;

static bool ok(TRITONSERVER_Error* error)
{
  TRITONSERVER_ErrorDelete(error);
  return error == NULL;
}

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* of, const char* name, size_t size, TRITONSERVER_MemoryType type, int64_t id,
    void* userp, void** buffer, void** buffer_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id)
{
  (void)of, (void)name, (void)type, (void)id, (void)userp, (void)buffer_userp, (void)actual, (void)actual_id;
  *buffer = malloc(size + 1);
  return NULL;
}

static TRITONSERVER_Error* free_buffer(
    TRITONSERVER_ResponseAllocator* of, void* buffer, void* userp, size_t size, TRITONSERVER_MemoryType type, int64_t id)
{
  (void)of, (void)userp, (void)size, (void)type, (void)id;
  free(buffer);
  return NULL;
}

static void complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  (void)flags, (void)userp;
  ++answered;
  ok(TRITONSERVER_InferenceResponseDelete(response));
}

static void give_back(TRITONSERVER_InferenceRequest* it, const uint32_t flags, void* userp)
{
  (void)it, (void)flags, (void)userp;
  ++released;
}

static void make_shared(void)
{
  static const float values[4] = {1, 2, 3, 4};
  static const int64_t shape[1] = {4};
  ok(TRITONSERVER_MessageNewFromSerializedJson(&message, "{}", 2));
  ok(TRITONSERVER_InferenceRequestNew(&request, server, "m", -1));
  ok(TRITONSERVER_InferenceRequestSetId(request, "place"));
  ok(TRITONSERVER_InferenceRequestAddInput(request, "x", TRITONSERVER_TYPE_FP32, shape, 1));
  ok(TRITONSERVER_InferenceRequestAppendInputData(request, "x", values, 16, TRITONSERVER_MEMORY_CPU, 0));
  ok(TRITONSERVER_InferenceRequestSetReleaseCallback(request, give_back, NULL));
  ok(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, complete, NULL));
}

// What every thread does to the same objects at the same time.
static void one_round(intptr_t thread)
{
  const char* text;
  size_t size;
  char id[32];
  bool cancelled;
  snprintf(id, sizeof(id), "%d", (int)thread);
  TRITONSERVER_Error* error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, id);
  if (strcmp(TRITONSERVER_ErrorMessage(error), id) != 0) {
    printf("another error than mine\n");
  }
  TRITONSERVER_ErrorDelete(error);
  ok(TRITONSERVER_ServerOptionsSetServerId(options, id));
  ok(TRITONSERVER_InferenceRequestSetPriority(request, 1));
  ok(TRITONSERVER_ServerInferAsync(server, request, NULL));
  ok(TRITONSERVER_InferenceRequestIsCancelled(request, &cancelled));
  ok(TRITONSERVER_InferenceRequestCancel(request));
  ok(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
  deleted += ok(TRITONSERVER_MessageDelete(message));
  ok(TRITONSERVER_MessageSerializeToJson(message, &text, &size));
}

static void* run(void* thread)
{
  for (int round = *(const int*)thread; round > 0; --round) {
    // One of them makes the objects that all use.
    if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD) {
      make_shared();
    }
    pthread_barrier_wait(&together);
    one_round(round);
    if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD) {
      deleted += ok(TRITONSERVER_InferenceRequestDelete(request));
    }
  }
  return NULL;
}

int main(int count, char** arguments)
{
  int rounds = count > 1 ? atoi(arguments[1]) : 1;
  pthread_t threads[THREADS];
  use_stub();
  uint64_t before = repoagent_living_handles();
  ok(TRITONSERVER_ServerOptionsNew(&options));
  ok(TRITONSERVER_ServerNew(&server, options));
  ok(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, free_buffer, NULL));
  pthread_barrier_init(&together, NULL, THREADS);
  for (int index = 0; index < THREADS; ++index) {
    pthread_create(&threads[index], NULL, run, &rounds);
  }
  for (int index = 0; index < THREADS; ++index) {
    pthread_join(threads[index], NULL);
  }
  ok(TRITONSERVER_ResponseAllocatorDelete(allocator));
  ok(TRITONSERVER_ServerDelete(server));
  ok(TRITONSERVER_ServerOptionsDelete(options));
  pthread_barrier_destroy(&together);
  printf(
      "deleted: %d, unanswered: %d, left: %d\n", deleted - 2 * rounds, answered - released,
      (int)(repoagent_living_handles() - before));
  return answered == 0;
}
