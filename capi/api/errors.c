#include <stdio.h>
#include <stdlib.h>
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

TRITONSERVER_Error* take_json(TRITONSERVER_Message* message, char** text)
{
  const char* json = "";
  size_t size = 0;
  TRITONSERVER_Error* error = TRITONSERVER_MessageSerializeToJson(message, &json, &size);
  if (error == NULL) {
    error = set_text(text, json);
  }
  handle_delete(message, KIND_MESSAGE);
  return error;
}

void show(pthread_mutex_t* lock, char** field, char* text, const char** shown)
{
  pthread_mutex_lock(lock);
  char* before = *field;
  *field = text;
  pthread_mutex_unlock(lock);
  free(before);
  *shown = text;
}
