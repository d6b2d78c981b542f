// The round trip of TRITONSERVER_ServerInferAsync, the cost of a function that needs no Python, and the start of a
// program. Usage: round_trip REPOSITORY ROUNDS. Prints microseconds, one figure a line.
#define _GNU_SOURCE
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "triton/core/tritonserver.h"

static sem_t answered;
static char buffer[4096];

static double now_us(void)
{
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec * 1e6 + (double)now.tv_nsec / 1e3;
}

static void must(TRITONSERVER_Error* error)
{
  if (error != NULL) {
    fprintf(stderr, "%s\n", TRITONSERVER_ErrorMessage(error));
    exit(1);
  }
}

static TRITONSERVER_Error* allocate(
    TRITONSERVER_ResponseAllocator* allocator, const char* name, size_t size, TRITONSERVER_MemoryType type, int64_t id,
    void* userp, void** given, void** given_userp, TRITONSERVER_MemoryType* actual, int64_t* actual_id)
{
  (void)allocator, (void)name, (void)size, (void)type, (void)id, (void)userp;
  *given = buffer;
  *given_userp = NULL;
  *actual = TRITONSERVER_MEMORY_CPU;
  *actual_id = 0;
  return NULL;
}

static TRITONSERVER_Error* release_buffer(
    TRITONSERVER_ResponseAllocator* allocator, void* given, void* userp, size_t size, TRITONSERVER_MemoryType type,
    int64_t id)
{
  (void)allocator, (void)given, (void)userp, (void)size, (void)type, (void)id;
  return NULL;
}

static void complete(TRITONSERVER_InferenceResponse* response, const uint32_t flags, void* userp)
{
  (void)flags, (void)userp;
  must(TRITONSERVER_InferenceResponseDelete(response));
}

static void released(TRITONSERVER_InferenceRequest* request, const uint32_t flags, void* userp)
{
  (void)request, (void)flags, (void)userp;
  sem_post(&answered);
}

static void once(TRITONSERVER_Server* server, TRITONSERVER_ResponseAllocator* allocator)
{
  static const float values[16];
  static const int64_t shape[1] = {16};
  TRITONSERVER_InferenceRequest* request = NULL;
  must(TRITONSERVER_InferenceRequestNew(&request, server, "identity", -1));
  must(TRITONSERVER_InferenceRequestAddInput(request, "INPUT0", TRITONSERVER_TYPE_FP32, shape, 1));
  must(TRITONSERVER_InferenceRequestAppendInputData(request, "INPUT0", values, sizeof(values), TRITONSERVER_MEMORY_CPU, 0));
  must(TRITONSERVER_InferenceRequestSetReleaseCallback(request, released, NULL));
  must(TRITONSERVER_InferenceRequestSetResponseCallback(request, allocator, NULL, complete, NULL));
  must(TRITONSERVER_ServerInferAsync(server, request, NULL));
  sem_wait(&answered);
  must(TRITONSERVER_InferenceRequestDelete(request));
}

static int compare(const void* left, const void* right)
{
  double a = *(const double*)left, b = *(const double*)right;
  return (a > b) - (a < b);
}

int main(int count, char** arguments)
{
  int rounds = count > 2 ? atoi(arguments[2]) : 1000;
  double* times = malloc(sizeof(double) * (size_t)rounds);
  double started = now_us();
  TRITONSERVER_ServerOptions* options = NULL;
  TRITONSERVER_Server* server = NULL;
  TRITONSERVER_ResponseAllocator* allocator = NULL;
  sem_init(&answered, 0, 0);
  must(TRITONSERVER_ServerOptionsNew(&options));
  must(TRITONSERVER_ServerOptionsSetModelRepositoryPath(options, arguments[1]));
  must(TRITONSERVER_ServerNew(&server, options));
  printf("start %.0f\n", now_us() - started);
  must(TRITONSERVER_ResponseAllocatorNew(&allocator, allocate, release_buffer, NULL));
  for (int round = 0; round < 500; ++round) {
    once(server, allocator);
  }
  for (int round = 0; round < rounds; ++round) {
    double before = now_us();
    once(server, allocator);
    times[round] = now_us() - before;
  }
  qsort(times, (size_t)rounds, sizeof(double), compare);
  printf("infer %.2f\n", times[rounds / 2]);
  TRITONSERVER_InferenceRequest* request = NULL;
  must(TRITONSERVER_InferenceRequestNew(&request, server, "identity", -1));
  double before = now_us();
  uint64_t timeout = 0;
  for (int round = 0; round < 1000000; ++round) {
    must(TRITONSERVER_InferenceRequestTimeoutMicroseconds(request, &timeout));
  }
  printf("getter %.4f\n", (now_us() - before) / 1e6);
  must(TRITONSERVER_InferenceRequestDelete(request));
  must(TRITONSERVER_ServerDelete(server));
  return 0;
}
