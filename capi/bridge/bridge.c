// A repository agent of Triton's that is an agent of repoagent: `repoagent bridge install` copies this library as
// DIR/NAME/libtritonrepoagent_NAME.so. It asks Triton for nothing itself; repoagent_capi/bridge.py does.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "start.h"
#include "triton/core/tritonrepoagent.h"

enum { INITIALIZE = -1, FINALIZE = -2, MODEL_INITIALIZE = -3, MODEL_FINALIZE = -4 };

// One function of Python: the agent's name, Triton's handles, and an action or one of the above.
typedef void* (*call_function)(const char* name, void* agent, void* model, int what);

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static call_function call;
static char name[256];

TRITONSERVER_Error* fail(TRITONSERVER_Error_Code code, const char* format, ...)
{
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof(text), format, arguments);
  va_end(arguments);
  return TRITONSERVER_ErrorNew(code, text);
}

// NAME of the libtritonrepoagent_NAME.so that this is.
static TRITONSERVER_Error* find_name(void)
{
  static const char start[] = "libtritonrepoagent_";
  Dl_info info;
  const char* file = dladdr(&lock, &info) != 0 ? strrchr(info.dli_fname, '/') : NULL;
  file = file == NULL ? NULL : file + 1;
  const char* end = file == NULL ? NULL : strstr(file, ".so");
  if (end == NULL || strncmp(file, start, strlen(start)) != 0 || end - file - strlen(start) >= sizeof(name)) {
    return fail(TRITONSERVER_ERROR_INTERNAL, "the bridge must be called libtritonrepoagent_NAME.so");
  }
  memcpy(name, file + strlen(start), (size_t)(end - file) - strlen(start));
  return NULL;
}

// The function that repoagent_capi.bridge offers as a number.
static TRITONSERVER_Error* find_call(void)
{
  PyGILState_STATE (*ensure)(void);
  void (*release)(PyGILState_STATE);
  PyObject* (*import)(const char*);
  PyObject* (*attribute)(PyObject*, const char*);
  void* (*pointer)(PyObject*);
  const struct {
    const char* name;
    void* place;
  } wanted[] = {{"PyGILState_Ensure", &ensure},
                {"PyGILState_Release", &release},
                {"PyImport_ImportModule", &import},
                {"PyObject_GetAttrString", &attribute},
                {"PyLong_AsVoidPtr", &pointer}};
  for (size_t index = 0; index < sizeof(wanted) / sizeof(*wanted); ++index) {
    void* found = dlsym(RTLD_DEFAULT, wanted[index].name);
    memcpy(wanted[index].place, &found, sizeof(found));
  }
  PyGILState_STATE state = ensure();
  PyObject* module = import("repoagent_capi.bridge");
  PyObject* number = module == NULL ? NULL : attribute(module, "CALL_ADDRESS");
  void* found = number == NULL ? NULL : pointer(number);
  release(state);
  memcpy(&call, &found, sizeof(found));
  return call == NULL ? fail(TRITONSERVER_ERROR_INTERNAL, "repoagent_capi.bridge offers no function") : NULL;
}

TRITONSERVER_Error* TRITONREPOAGENT_Initialize(TRITONREPOAGENT_Agent* agent)
{
  pthread_mutex_lock(&lock);
  TRITONSERVER_Error* error = call == NULL ? find_name() : NULL;
  if (error == NULL && call == NULL) {
    error = start_python();
  }
  if (error == NULL && call == NULL) {
    error = find_call();
  }
  pthread_mutex_unlock(&lock);
  return error != NULL ? error : call(name, agent, NULL, INITIALIZE);
}

TRITONSERVER_Error* TRITONREPOAGENT_Finalize(TRITONREPOAGENT_Agent* agent)
{
  return call == NULL ? NULL : call(name, agent, NULL, FINALIZE);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelInitialize(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
  return call(name, agent, model, MODEL_INITIALIZE);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelFinalize(TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model)
{
  return call(name, agent, model, MODEL_FINALIZE);
}

TRITONSERVER_Error* TRITONREPOAGENT_ModelAction(
    TRITONREPOAGENT_Agent* agent, TRITONREPOAGENT_AgentModel* model, const TRITONREPOAGENT_ActionType action)
{
  return call(name, agent, model, (int)action);
}
