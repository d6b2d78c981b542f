// The table that is installed, and what to do where none is: start Python.
#include "core.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "layer.h"
#include "start.h"

static _Atomic(const core*) installed;
static atomic_bool forked;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

// What the extension calls, by its place here: tools/write_crossing.py reads this list.
static crossed_function const CROSSED_FUNCTIONS[] = {
    (crossed_function)repoagent_text_set,
    (crossed_function)repoagent_respond,
    (crossed_function)repoagent_place,
    (crossed_function)repoagent_place_return,
    (crossed_function)repoagent_trace_begin,
    (crossed_function)repoagent_trace_activity,
    (crossed_function)repoagent_trace_tensor,
    (crossed_function)repoagent_trace_child,
    (crossed_function)repoagent_trace_end,
    (crossed_function)repoagent_agent_open,
    (crossed_function)repoagent_agent_close,
    (crossed_function)repoagent_agent_initialize,
    (crossed_function)repoagent_agent_finalize,
    (crossed_function)repoagent_model_open,
    (crossed_function)repoagent_model_close,
    (crossed_function)repoagent_model_initialize,
    (crossed_function)repoagent_model_finalize,
    (crossed_function)repoagent_model_action,
};

crossed_function const* repoagent_core_install(const core* table)
{
  atomic_store(&installed, table);
  return CROSSED_FUNCTIONS;
}

static void after_fork(void)
{
  atomic_store(&forked, atomic_load(&installed) != NULL);
}

static void stop_at_exit(void)
{
  const core* table = atomic_load(&installed);
  if (table != NULL && !atomic_load(&forked)) {
    TRITONSERVER_ErrorDelete(table->shutdown());
  }
}

__attribute__((constructor)) static void watch_forks(void)
{
  pthread_atfork(NULL, NULL, after_fork);
}

static const core* start(TRITONSERVER_Error** error)
{
  static bool stops_at_exit;
  pthread_mutex_lock(&starting);
  const core* table = atomic_load(&installed);
  if (table == NULL) {
    *error = start_python();
    table = atomic_load(&installed);
    if (*error == NULL && table == NULL) {
      *error = fail(TRITONSERVER_ERROR_INTERNAL, "repoagent started, and offers nothing");
    }
    if (table != NULL && !stops_at_exit) {
      // Registered after Python's library was loaded: it runs before that goes.
      stops_at_exit = true;
      atexit(stop_at_exit);
    }
  }
  pthread_mutex_unlock(&starting);
  return table;
}

const core* core_or_error(TRITONSERVER_Error** error)
{
  if (atomic_load(&forked)) {
    *error = fail(
        TRITONSERVER_ERROR_UNAVAILABLE,
        "this process was forked from one in which repoagent runs already; fork before the first server is made");
    return NULL;
  }
  const core* table = atomic_load(&installed);
  return table != NULL ? table : start(error);
}
