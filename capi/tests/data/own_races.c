// Threads that ask the same handles of repoagent's own API at once, over the stub table, for a sanitizer to watch.
// Argument: rounds.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "repoagent/capi.h"
#include "stub_core.h"

enum { THREADS = 4 };

static pthread_barrier_t together;
static repoagent_server server;
static repoagent_model model;
static int failed;

#define CHECK(condition)                             \
  do {                                               \
    if (!(condition)) {                              \
      printf("line %d: %s\n", __LINE__, #condition); \
      failed = 1;                                    \
    }                                                \
  } while (0)

static void make_shared(void)
{
  server = repoagent_server_create();
  CHECK(repoagent_server_start(server) == REPOAGENT_NO_ERROR);
  model = repoagent_model_create(server, "m", -1);
}

// The texts are not read: the next call of any thread ends them.
static void ask(void)
{
  const char* text = NULL;
  bool ready = false;
  for (int time = 0; time < 20; ++time) {
    repoagent_server_get_metrics(server, &text);
    repoagent_model_get_metadata(model, &text);
    repoagent_model_get_report(model, &text);
    repoagent_server_is_ready(server, &ready);
    repoagent_model_is_ready(model, &ready);
  }
}

// One of several strings is missing: nothing is kept of the others.
static void leave_one_out(void)
{
  static const int64_t shape[] = {2};
  const char* strings[] = {"here", NULL};
  repoagent_tensor tensor = repoagent_tensor_create(REPOAGENT_BYTES, shape, 1);
  CHECK(repoagent_tensor_set_strings(tensor, strings, NULL, 2) == REPOAGENT_INVALID_ARGUMENT);
  CHECK(repoagent_tensor_delete(tensor) == REPOAGENT_NO_ERROR);
}

static void* run(void* rounds)
{
  for (int round = *(const int*)rounds; round > 0; --round) {
    if (pthread_barrier_wait(&together) == PTHREAD_BARRIER_SERIAL_THREAD) {
      make_shared();
    }
    pthread_barrier_wait(&together);
    ask();
    leave_one_out();
    repoagent_server_delete(server);  // one of them does, while others may still ask
  }
  return NULL;
}

int main(int count, char** arguments)
{
  int rounds = count > 1 ? atoi(arguments[1]) : 1;
  pthread_t threads[THREADS];
  use_stub();
  pthread_barrier_init(&together, NULL, THREADS);
  for (int index = 0; index < THREADS; ++index) {
    pthread_create(&threads[index], NULL, run, &rounds);
  }
  for (int index = 0; index < THREADS; ++index) {
    pthread_join(threads[index], NULL);
  }
  pthread_barrier_destroy(&together);
  printf("asked\n");
  return failed;
}
