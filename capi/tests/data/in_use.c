// Deletes what is in use: a running request, its input, the model, an answered request whose output is kept.
// Arguments: a repository with the model "held", and the pipe from which it takes a byte for each request.
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "repoagent/capi.h"

REPOAGENT_API uint64_t repoagent_living_handles(void);

static int after;
static int deleted;

static void on_answer(repoagent_request request, repoagent_error error, bool final, void* nothing)
{
  (void)request, (void)error, (void)final, (void)nothing;
  after += deleted;
}

/* A submit that is refused leaves no answer of the one before. */
static void refuse(repoagent_request request)
{
  static const int64_t shape[] = {1, 1};
  float value = 7;
  repoagent_tensor wrong = repoagent_tensor_create(REPOAGENT_FP32, shape, 2), output = NULL;
  MADE(wrong);
  DONE(repoagent_tensor_set_data(wrong, &value, sizeof(value)));
  DONE(repoagent_request_set_input(request, "INPUT0", wrong));
  check(repoagent_request_submit(request) == REPOAGENT_INVALID_ARGUMENT, "not refused");
  check(repoagent_request_wait(request, -1) == REPOAGENT_INVALID_ARGUMENT, "no error to wait for");
  const char* message = "";
  DONE(repoagent_error_get_message(&message));
  check(strstr(message, "shape") != NULL, message);
  check(repoagent_request_get_output(request, NULL, 0, &output, NULL) != REPOAGENT_NO_ERROR, "an output");
  DONE(repoagent_tensor_delete(wrong));
}

/* The input goes at once, or to `kept`. */
static repoagent_request send_one(repoagent_model model, float value, repoagent_tensor* kept)
{
  static const int64_t shape[] = {1};
  repoagent_tensor input = repoagent_tensor_create(REPOAGENT_FP32, shape, 1);
  MADE(input);
  DONE(repoagent_tensor_set_data(input, &value, sizeof(value)));
  repoagent_request request = repoagent_request_create(model);
  MADE(request);
  DONE(repoagent_request_set_input(request, "INPUT0", input));
  DONE(repoagent_request_set_callback(request, on_answer, NULL));
  DONE(repoagent_request_submit(request));
  if (kept != NULL) {
    *kept = input;
  } else {
    DONE(repoagent_tensor_delete(input));
  }
  return request;
}

int main(int count, char** arguments)
{
  repoagent_tensor input = NULL, output = NULL;
  float other = 1;
  void* data = NULL;
  size_t byte_size = 0;
  check(count == 3, "usage: in_use REPOSITORY PIPE");
  int pipe = open(arguments[2], O_RDWR);
  check(pipe >= 0, "no pipe");
  repoagent_server server = repoagent_server_create();
  MADE(server);
  DONE(repoagent_server_set_option(server, "repository", arguments[1]));
  DONE(repoagent_server_start(server));
  repoagent_model model = repoagent_model_create(server, "held", -1);
  MADE(model);
  DONE(repoagent_model_load(model));
  repoagent_request first = send_one(model, 7, NULL);
  repoagent_request running = send_one(model, 8, NULL);
  repoagent_request waiting = send_one(model, 9, &input);
  check(repoagent_request_submit(running) == REPOAGENT_INVALID_ARGUMENT, "submitted twice");
  check(repoagent_request_wait(waiting, 1) == REPOAGENT_UNAVAILABLE, "waited too short");
  check(repoagent_tensor_set_data(input, &other, sizeof(other)) == REPOAGENT_INVALID_ARGUMENT, "changed under a model");
  check(write(pipe, "1", 1) == 1, "not let go");
  DONE(repoagent_request_wait(first, -1));
  deleted = 1;
  DONE(repoagent_request_delete(running));
  DONE(repoagent_request_delete(waiting));
  check(repoagent_request_delete(waiting) == REPOAGENT_INVALID_ARGUMENT, "deleted twice");
  DONE(repoagent_model_delete(model));
  DONE(repoagent_request_get_output(first, NULL, 0, &output, NULL));
  refuse(first);
  DONE(repoagent_request_delete(first));
  check(write(pipe, "23", 2) == 2, "not let go");
  DONE(repoagent_server_delete(server)); /* waits for what runs */
  DONE(repoagent_tensor_set_data(input, &other, sizeof(other)));
  DONE(repoagent_tensor_delete(input));
  DONE(repoagent_tensor_get_data(output, &data, &byte_size));
  printf("calls after the delete: %d\noutput: %g\n", after, (double)*(float*)data);
  DONE(repoagent_tensor_delete(output));
  printf("handles: %d\n", (int)repoagent_living_handles());
  return 0;
}
