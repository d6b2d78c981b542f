// As walk.h, for repoagent's own API.
#pragma once

#include "repoagent/capi.h"
#define remove_any remove_triton
#include "walk.h"
#undef remove_any

static repoagent_server own_server;
static repoagent_model own_model;

static void* make_repoagent_tensor(void)
{
  static const int64_t shape[] = {1};
  return repoagent_tensor_create(REPOAGENT_FP32, shape, 1);
}

static void* make_repoagent_server(void)
{
  return repoagent_server_create();
}

static void* make_repoagent_model(void)
{
  return repoagent_model_create(own_server, "m", -1);
}

static void* make_repoagent_request(void)
{
  return repoagent_request_create(own_model);
}

// There is one only within a call of an agent: what is made here is none, and is refused.
static void* make_repoagent_agent(void)
{
  return NULL;
}

static void remove_any(void* handle)
{
  repoagent_tensor_delete(handle);
  repoagent_request_delete(handle);
  repoagent_model_delete(handle);
  repoagent_server_delete(handle);
  remove_triton(handle);
}

DELETED(repoagent_tensor)
DELETED(repoagent_server)
DELETED(repoagent_model)
DELETED(repoagent_request)
DELETED(repoagent_agent)

static void judge(repoagent_error error, int must_refuse, const char* call)
{
  const char* message = "";
  repoagent_error_get_message(&message);
  if (must_refuse && error == REPOAGENT_NO_ERROR) {
    printf("accepted: %s\n", call);
  }
  if (error != REPOAGENT_NO_ERROR && *message == '\0') {
    printf("no message: %s\n", call);
  }
}

static void begin_own(void)
{
  begin();
  own_server = make_repoagent_server();
  repoagent_server_start(own_server);
  own_model = make_repoagent_model();
  living = repoagent_living_handles();
}

static void end_own(void)
{
  remove_any(own_model);
  remove_any(own_server);
  end();
}

#define begin begin_own
#define end end_own
