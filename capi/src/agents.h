// Native agents: a library that is open, and one load that goes through it.
#pragma once

#include "layer.h"
#include "triton/core/tritonrepoagent.h"

struct agent {
  struct object object;
  void* library;
  _Atomic(void*) state;
  TRITONSERVER_Error* (*initialize)(TRITONREPOAGENT_Agent*);
  TRITONSERVER_Error* (*finalize)(TRITONREPOAGENT_Agent*);
  TRITONSERVER_Error* (*model_initialize)(TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*);
  TRITONSERVER_Error* (*model_finalize)(TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*);
  TRITONSERVER_Error* (*model_action)(
      TRITONREPOAGENT_Agent*, TRITONREPOAGENT_AgentModel*, const TRITONREPOAGENT_ActionType);
};

struct kept_text {
  struct kept_text* next;
  char* text;
};

struct agent_model {
  struct object object;
  pthread_mutex_t lock;
  core_object core;
  struct named_value* parameters;
  uint64_t parameter_count;
  struct kept_text* texts;
  _Atomic(void*) state;
};
