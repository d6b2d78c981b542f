#include <stdio.h>
#include <string.h>

#include "api.h"

static _Thread_local char last[1200];

repoagent_error settle(TRITONSERVER_Error* error)
{
  if (error == NULL) {
    return REPOAGENT_NO_ERROR;
  }
  const char* text = TRITONSERVER_ErrorMessage(error);
  snprintf(last, sizeof(last), "%s", text == NULL ? "" : text);
  repoagent_error code = (repoagent_error)((int)TRITONSERVER_ErrorCode(error) + 1);
  TRITONSERVER_ErrorDelete(error);
  return code;
}

repoagent_error repoagent_error_get_name(repoagent_error error, const char** name)
{
  NEED(name);
  const char* text = error == REPOAGENT_NO_ERROR ? "No error" : code_text((int)error - 1);
  if (text == NULL) {
    return settle(INVALID("not an error: %d", (int)error));
  }
  *name = text;
  return REPOAGENT_NO_ERROR;
}

repoagent_error repoagent_error_get_message(const char** message)
{
  if (message == NULL) {
    return REPOAGENT_INVALID_ARGUMENT;
  }
  *message = last;
  return REPOAGENT_NO_ERROR;
}

void* created(enum kind kind, void* object, void (*destroy)(void*))
{
  void* handle = NULL;
  if (object == NULL) {
    settle(out_of_memory());
    return NULL;
  }
  return settle(publish(kind, object, destroy, &handle)) == REPOAGENT_NO_ERROR ? handle : NULL;
}

TRITONSERVER_Error* keep_json(TRITONSERVER_Message* message, char** field)
{
  const char* text = "";
  size_t size = 0;
  TRITONSERVER_Error* error = TRITONSERVER_MessageSerializeToJson(message, &text, &size);
  if (error == NULL) {
    error = set_text(field, text);
  }
  handle_delete(message, KIND_MESSAGE);
  return error;
}
