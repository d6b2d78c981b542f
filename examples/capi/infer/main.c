/* Send one tensor to a model and print what comes back. Usage: infer REPOSITORY */
#include "../check.h"
#include "repoagent/capi.h"

int main(int count, char** arguments)
{
  static const int64_t shape[] = {4};
  static const float values[] = {1, 2, 3, 4};
  repoagent_tensor output = NULL;
  void* data = NULL;
  size_t byte_size = 0;

  check(count == 2, "usage: infer REPOSITORY");
  repoagent_server server = repoagent_server_create();
  MADE(server);
  DONE(repoagent_server_set_option(server, "repository", arguments[1]));
  DONE(repoagent_server_start(server));
  repoagent_model model = repoagent_model_create(server, "echo", -1);
  MADE(model);
  DONE(repoagent_model_load(model));

  repoagent_tensor input = repoagent_tensor_create(REPOAGENT_FP32, shape, 1);
  MADE(input);
  DONE(repoagent_tensor_set_data(input, values, sizeof(values)));
  repoagent_request request = repoagent_request_create(model);
  MADE(request);
  DONE(repoagent_request_set_input(request, "INPUT0", input));
  DONE(repoagent_request_submit(request));
  DONE(repoagent_request_wait(request, -1));
  DONE(repoagent_request_get_output(request, "OUTPUT0", 0, &output, NULL));
  DONE(repoagent_tensor_get_data(output, &data, &byte_size));
  for (size_t index = 0; index < byte_size / sizeof(float); ++index) {
    printf("%g\n", (double)((float*)data)[index]);
  }

  DONE(repoagent_tensor_delete(output));
  DONE(repoagent_request_delete(request));
  DONE(repoagent_tensor_delete(input));
  DONE(repoagent_model_delete(model));
  DONE(repoagent_server_delete(server));
  return 0;
}
