/* Keep many requests in flight; each answer comes to a callback. Usage: many REPOSITORY */
#include "../check.h"
#include "repoagent/capi.h"

enum { REQUESTS = 200 };

/* A slot for each answer, so that callbacks on several threads need no lock. */
static float answers[REQUESTS];

static void on_answer(repoagent_request request, repoagent_error error, bool final, void* slot)
{
  repoagent_tensor output = NULL;
  void* data = NULL;
  size_t byte_size = 0;
  check(final && error == REPOAGENT_NO_ERROR, "a request");
  DONE(repoagent_request_get_output(request, "OUTPUT0", 0, &output, NULL));
  DONE(repoagent_tensor_get_data(output, &data, &byte_size));
  *(float*)slot = *(float*)data;
  DONE(repoagent_tensor_delete(output));
}

int main(int count, char** arguments)
{
  static const int64_t shape[] = {1};
  static repoagent_request requests[REQUESTS];

  check(count == 2, "usage: many REPOSITORY");
  repoagent_server server = repoagent_server_create();
  MADE(server);
  DONE(repoagent_server_set_option(server, "repository", arguments[1]));
  DONE(repoagent_server_start(server));
  repoagent_model model = repoagent_model_create(server, "echo", -1);
  MADE(model);
  DONE(repoagent_model_load(model));
  for (int index = 0; index < REQUESTS; ++index) {
    float value = (float)index;
    repoagent_tensor input = repoagent_tensor_create(REPOAGENT_FP32, shape, 1);
    MADE(input);
    DONE(repoagent_tensor_set_data(input, &value, sizeof(value)));
    requests[index] = repoagent_request_create(model);
    MADE(requests[index]);
    DONE(repoagent_request_set_input(requests[index], "INPUT0", input));
    DONE(repoagent_request_set_callback(requests[index], on_answer, &answers[index]));
    DONE(repoagent_request_submit(requests[index]));
    /* The request keeps its input. */
    DONE(repoagent_tensor_delete(input));
  }
  float sum = 0;
  for (int index = 0; index < REQUESTS; ++index) {
    DONE(repoagent_request_wait(requests[index], 60000));
    DONE(repoagent_request_delete(requests[index]));
    sum += answers[index];
  }
  printf("%d answers, sum %g\n", REQUESTS, (double)sum);
  DONE(repoagent_model_delete(model));
  DONE(repoagent_server_delete(server));
  return 0;
}
