/* Generate text with a language model, piece by piece. Usage: generate REPOSITORY MODEL PROMPT MAX_TOKENS */
#include "../check.h"
#include "repoagent/capi.h"

static repoagent_tensor text_tensor(const char* text)
{
  static const int64_t shape[] = {1};
  repoagent_tensor tensor = repoagent_tensor_create(REPOAGENT_BYTES, shape, 1);
  MADE(tensor);
  DONE(repoagent_tensor_set_strings(tensor, &text, NULL, 1));
  return tensor;
}

static repoagent_tensor value_tensor(repoagent_type type, const void* value, size_t byte_size)
{
  static const int64_t shape[] = {1};
  repoagent_tensor tensor = repoagent_tensor_create(type, shape, 1);
  MADE(tensor);
  DONE(repoagent_tensor_set_data(tensor, value, byte_size));
  return tensor;
}

static void give(repoagent_request request, const char* name, repoagent_tensor tensor)
{
  DONE(repoagent_request_set_input(request, name, tensor));
  DONE(repoagent_tensor_delete(tensor));
}

static void on_piece(repoagent_request request, repoagent_error error, bool final, void* nothing)
{
  repoagent_tensor output = NULL;
  const char* text = "";
  size_t byte_size = 0;
  (void)final;
  (void)nothing;
  check(error == REPOAGENT_NO_ERROR, "generation");
  if (repoagent_request_get_output(request, "text_output", 0, &output, NULL) == REPOAGENT_NO_ERROR) {
    DONE(repoagent_tensor_get_string(output, 0, &text, &byte_size));
    printf("%.*s", (int)byte_size, text);
    fflush(stdout);
    DONE(repoagent_tensor_delete(output));
  }
}

int main(int count, char** arguments)
{
  static const unsigned char yes = 1;
  check(count == 5, "usage: generate REPOSITORY MODEL PROMPT MAX_TOKENS");
  int32_t most = (int32_t)strtol(arguments[4], NULL, 10);
  repoagent_server server = repoagent_server_create();
  MADE(server);
  DONE(repoagent_server_set_option(server, "repository", arguments[1]));
  DONE(repoagent_server_start(server));
  repoagent_model model = repoagent_model_create(server, arguments[2], -1);
  MADE(model);
  DONE(repoagent_model_load(model));
  repoagent_request request = repoagent_request_create(model);
  MADE(request);
  give(request, "text_input", text_tensor(arguments[3]));
  give(request, "max_tokens", value_tensor(REPOAGENT_INT32, &most, sizeof(most)));
  give(request, "stream", value_tensor(REPOAGENT_BOOL, &yes, sizeof(yes)));
  DONE(repoagent_request_set_callback(request, on_piece, NULL));
  DONE(repoagent_request_submit(request));
  DONE(repoagent_request_wait(request, -1));
  printf("\n");
  DONE(repoagent_request_delete(request));
  DONE(repoagent_model_delete(model));
  DONE(repoagent_server_delete(server));
  return 0;
}
