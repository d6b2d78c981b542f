/* The C API of repoagent: models, requests and agents. Each header also stands alone. */
#ifndef REPOAGENT_CAPI_H
#define REPOAGENT_CAPI_H

#include "repoagent/agent.h"
#include "repoagent/error.h"
#include "repoagent/model.h"
#include "repoagent/request.h"
#include "repoagent/server.h"
#include "repoagent/tensor.h"

#endif
