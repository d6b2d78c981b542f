// Python in a C program. Its library is opened when it is needed, so that this layer also serves an interpreter that is
// linked statically, and with its symbols global, as extension modules expect them.
//
// Which Python: that of the environment in which this library is installed, or else the one that it was built with, which
// is baked in. REPOAGENT_PYTHON overrides both by an environment of the same version. Never the first python3 of PATH.
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "start.h"

#include <dlfcn.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "layer.h"

#define VERSION_STRING(major, minor) VERSION_STRING_(major, minor)
#define VERSION_STRING_(major, minor) #major "." #minor
static const char version[] = VERSION_STRING(PY_MAJOR_VERSION, PY_MINOR_VERSION);

// The functions of Python that are called here, found when its library is open.
static struct {
  int (*is_initialized)(void);
  const char* (*get_version)(void);
  void (*config_init)(PyConfig*);
  void (*config_clear)(PyConfig*);
  PyStatus (*config_set)(PyConfig*, wchar_t**, const char*);
  PyStatus (*initialize)(const PyConfig*);
  int (*is_exception)(PyStatus);
  PyGILState_STATE (*ensure)(void);
  void (*release)(PyGILState_STATE);
  PyThreadState* (*save)(void);
  PyObject* (*import)(const char*);
  void (*fetch)(PyObject**, PyObject**, PyObject**);
  void (*normalize)(PyObject**, PyObject**, PyObject**);
  PyObject* (*str)(PyObject*);
  const char* (*utf8)(PyObject*);
  void (*decref)(PyObject*);
  void (*clear)(void);
} py;

static const struct {
  const char* name;
  void* place;
} functions[] = {
    {"Py_IsInitialized", &py.is_initialized},
    {"Py_GetVersion", &py.get_version},
    {"PyConfig_InitPythonConfig", &py.config_init},
    {"PyConfig_Clear", &py.config_clear},
    {"PyConfig_SetBytesString", &py.config_set},
    {"Py_InitializeFromConfig", &py.initialize},
    {"PyStatus_Exception", &py.is_exception},
    {"PyGILState_Ensure", &py.ensure},
    {"PyGILState_Release", &py.release},
    {"PyEval_SaveThread", &py.save},
    {"PyImport_ImportModule", &py.import},
    {"PyErr_Fetch", &py.fetch},
    {"PyErr_NormalizeException", &py.normalize},
    {"PyObject_Str", &py.str},
    {"PyUnicode_AsUTF8", &py.utf8},
    {"Py_DecRef", &py.decref},
    {"PyErr_Clear", &py.clear},
};

static TRITONSERVER_Error* find_functions(void* library)
{
  for (size_t index = 0; index < sizeof(functions) / sizeof(*functions); ++index) {
    void* found = dlsym(library, functions[index].name);
    if (found == NULL) {
      return fail(TRITONSERVER_ERROR_INTERNAL, "the Python of this process has no function %s", functions[index].name);
    }
    memcpy(functions[index].place, &found, sizeof(found));
  }
  if (strncmp(py.get_version(), version, strlen(version)) != 0 || py.get_version()[strlen(version)] != '.') {
    return fail(
        TRITONSERVER_ERROR_UNSUPPORTED,
        "repoagent-capi was built for Python %s, and this process has Python %.20s; build it with that interpreter",
        version, py.get_version());
  }
  return NULL;
}

// The `home` line of the pyvenv.cfg beside the `bin` of `executable`; false for an interpreter without environment.
static bool home_of(const char* executable, char* home, size_t room)
{
  char path[4096];
  const char* slash = strrchr(executable, '/');
  if (slash == NULL) {
    return false;
  }
  snprintf(path, sizeof(path), "%.*s/../pyvenv.cfg", (int)(slash - executable), executable);
  FILE* file = fopen(path, "re");
  if (file == NULL) {
    snprintf(home, room, "%.*s", (int)(slash - executable), executable);
    return true;
  }
  bool found = false;
  while (!found && fgets(path, sizeof(path), file) != NULL) {
    char* value = strncmp(path, "home", 4) == 0 ? strchr(path, '=') : NULL;
    if (value != NULL) {
      value += 1 + strspn(value + 1, " \t");
      value[strcspn(value, "\r\n")] = '\0';
      snprintf(home, room, "%s", value);
      found = true;
    }
  }
  fclose(file);
  return found;
}

#ifdef REPOAGENT_BRIDGE
#define MODULE "repoagent_capi.bridge"

// The python that `repoagent bridge install` wrote into the file `environment` beside this library.
static bool own_environment(char* executable, size_t room)
{
  Dl_info info;
  char path[4096];
  const char* slash = dladdr(functions, &info) == 0 ? NULL : strrchr(info.dli_fname, '/');
  if (slash == NULL) {
    return false;
  }
  snprintf(path, sizeof(path), "%.*s/environment", (int)(slash - info.dli_fname), info.dli_fname);
  FILE* file = fopen(path, "re");
  bool found = file != NULL && fgets(executable, (int)room, file) != NULL;
  if (file != NULL) {
    fclose(file);
  }
  executable[found ? strcspn(executable, "\r\n") : 0] = '\0';
  return found && access(executable, X_OK) == 0;
}
#else
#define MODULE "repoagent_capi.embedded"

// The python of the environment that this library lies in: PREFIX/lib/pythonX.Y/site-packages/repoagent_capi/lib/.
static bool own_environment(char* executable, size_t room)
{
  Dl_info info;
  char real[4096];
  if (dladdr(functions, &info) == 0 || realpath(info.dli_fname, real) == NULL) {
    return false;
  }
  char* packages = strstr(real, "/site-packages/");
  if (packages == NULL) {
    return false;
  }
  *packages = '\0';
  for (int up = 0; up < 2; ++up) {
    char* slash = strrchr(real, '/');
    if (slash == NULL) {
      return false;
    }
    *slash = '\0';
  }
  snprintf(executable, room, "%s/bin/python%s", real, version);
  return access(executable, X_OK) == 0;
}

#endif

static const char* choose_executable(char* room, size_t size)
{
  const char* named = getenv("REPOAGENT_PYTHON");
  if (named != NULL && *named != '\0') {
    return named;
  }
  return own_environment(room, size) ? room : REPOAGENT_EXECUTABLE;
}

// The library of the interpreter `executable`, or the one that was there when this was built.
static void* open_python(const char* executable)
{
  char home[4096];
  char path[8192];
  if (home_of(executable, home, sizeof(home))) {
    snprintf(path, sizeof(path), "%s/../lib/%s", home, REPOAGENT_LIBPYTHON_NAME);
    void* library = dlopen(path, RTLD_NOW | RTLD_GLOBAL);
    if (library != NULL) {
      return library;
    }
  }
  return dlopen(REPOAGENT_LIBPYTHON, RTLD_NOW | RTLD_GLOBAL);
}

static TRITONSERVER_Error* initialize(const char* executable)
{
  if (strchr(executable, '/') != NULL && access(executable, X_OK) != 0) {
    return fail(
        TRITONSERVER_ERROR_INVALID_ARG,
        "%s cannot be run: %s; name the python of an environment that has repoagent-capi in REPOAGENT_PYTHON",
        executable, strerror(errno));
  }
  PyConfig config;
  py.config_init(&config);
  config.install_signal_handlers = 0;
  config.parse_argv = 0;
  PyStatus status = py.config_set(&config, &config.executable, executable);
  if (!py.is_exception(status)) {
    status = py.config_set(&config, &config.program_name, executable);
  }
  if (!py.is_exception(status)) {
    status = py.initialize(&config);
  }
  py.config_clear(&config);
  if (py.is_exception(status)) {
    return fail(
        TRITONSERVER_ERROR_INTERNAL, "Python could not be started from %s: %s", executable,
        status.err_msg == NULL ? "unknown" : status.err_msg);
  }
  py.save();
  return NULL;
}

// Text of the exception that is set, which is cleared.
static TRITONSERVER_Error* exception(const char* executable)
{
  PyObject *type = NULL, *value = NULL, *trace = NULL;
  py.fetch(&type, &value, &trace);
  py.normalize(&type, &value, &trace);
  PyObject* text = value == NULL ? NULL : py.str(value);
  const char* reason = text == NULL ? NULL : py.utf8(text);
  TRITONSERVER_Error* error = fail(
      TRITONSERVER_ERROR_UNAVAILABLE,
      "repoagent cannot be imported by %s: %s; install it there (from a checkout: pip install . ./capi), or name another "
      "environment's python in REPOAGENT_PYTHON",
      executable, reason == NULL ? "unknown" : reason);
  PyObject* const done[] = {type, value, trace, text};
  for (size_t index = 0; index < sizeof(done) / sizeof(*done); ++index) {
    py.decref(done[index]);  // Py_DecRef takes NULL
  }
  py.clear();
  return error;
}

static TRITONSERVER_Error* import_crossing(const char* executable)
{
  PyGILState_STATE state = py.ensure();
  PyObject* module = py.import(MODULE);
  TRITONSERVER_Error* error = module == NULL ? exception(executable) : NULL;
  if (module != NULL) {
    py.decref(module);
  }
  py.release(state);
  return error;
}

// Python's module of signals takes SIGINT when it is imported, whatever the configuration: all signals stay as they were.
static void swap_signals(struct sigaction* actions, bool keep)
{
  for (int number = 1; number < NSIG; ++number) {
    sigaction(number, keep ? NULL : &actions[number], keep ? &actions[number] : NULL);
  }
}

static TRITONSERVER_Error* start_and_import(const char* executable)
{
  struct sigaction actions[NSIG];
  swap_signals(actions, true);
  TRITONSERVER_Error* error = py.is_initialized() ? NULL : initialize(executable);
  if (error == NULL) {
    error = import_crossing(executable);
  }
  swap_signals(actions, false);
  return error;
}

TRITONSERVER_Error* start_python(void)
{
  char room[4200];
  const char* executable = choose_executable(room, sizeof(room));
  if (dlsym(RTLD_DEFAULT, "Py_IsInitialized") == NULL && open_python(executable) == NULL) {
    return fail(
        TRITONSERVER_ERROR_UNSUPPORTED,
        "a C program needs the shared library of Python, %s, which is not installed (looked for %s): install it (on "
        "Debian: libpython%s), or build repoagent-capi with an interpreter that has one",
        REPOAGENT_LIBPYTHON_NAME, REPOAGENT_LIBPYTHON, version);
  }
  TRY(find_functions(RTLD_DEFAULT));
  return start_and_import(executable);
}
