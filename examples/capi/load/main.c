/* Load a model through its agents, print the load report, and unload it. Usage: load REPOSITORY AGENTS MODEL */
#include "../check.h"
#include "repoagent/capi.h"

int main(int count, char** arguments)
{
  const char *report = "", *message = "";
  bool ready = false;

  check(count == 4, "usage: load REPOSITORY AGENTS MODEL");
  repoagent_server server = repoagent_server_create();
  MADE(server);
  DONE(repoagent_server_set_option(server, "repository", arguments[1]));
  DONE(repoagent_server_set_option(server, "agents", arguments[2]));
  DONE(repoagent_server_start(server));
  repoagent_model model = repoagent_model_create(server, arguments[3], -1);
  MADE(model);
  if (repoagent_model_load(model) != REPOAGENT_NO_ERROR) {
    DONE(repoagent_error_get_message(&message));
    printf("refused: %s\n", message);
  }
  DONE(repoagent_model_get_report(model, &report));
  printf("%s\n", report);
  if (repoagent_model_is_ready(model, &ready) == REPOAGENT_NO_ERROR && ready) {
    DONE(repoagent_model_unload(model));
  }
  DONE(repoagent_model_delete(model));
  DONE(repoagent_server_delete(server));
  return 0;
}
