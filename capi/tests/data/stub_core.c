// A table without Python: every question has some answer, every request is answered at once. For valgrind.
#include "stub_core.h"

#include <string.h>

static void give(core_text* text, const char* value)
{
  repoagent_text_set(text, value, strlen(value));
}

static TRITONSERVER_Error* server_new(const char* options, size_t size, core_object* server)
{
  *server = options[size - 1] == ']';
  return NULL;
}

static TRITONSERVER_Error* one_object(core_object object)
{
  (void)object;
  return NULL;
}

static TRITONSERVER_Error* set_exit_timeout(core_object server, uint32_t seconds)
{
  (void)server, (void)seconds;
  return NULL;
}

static TRITONSERVER_Error* is(core_object server, int question, bool* answer)
{
  (void)server, (void)question;
  *answer = true;
  return NULL;
}

static TRITONSERVER_Error* document(
    core_object server, int which, const char* name, int64_t version, uint32_t number, core_text* text)
{
  (void)server, (void)which, (void)version, (void)number;
  give(text, *name == '\0' ? "{}" : "{\"name\":\"m\"}");
  return NULL;
}

static TRITONSERVER_Error* with_parameters(
    core_object server, const char* name, const core_parameter* parameters, uint64_t count)
{
  (void)server, (void)name;
  for (uint64_t index = 0; index < count; ++index) {
    if (parameters[index].name == NULL) {
      return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "a parameter without a name");
    }
  }
  return NULL;
}

static TRITONSERVER_Error* one_name(core_object server, const char* name)
{
  (void)server;
  return *name == '\0' ? TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_NOT_FOUND, "no name") : NULL;
}

static TRITONSERVER_Error* unload(core_object server, const char* name, bool dependents)
{
  (void)dependents;
  return one_name(server, name);
}

static TRITONSERVER_Error* model_is_ready(core_object server, const char* name, int64_t version, bool* ready)
{
  (void)version;
  *ready = true;
  return one_name(server, name);
}

static TRITONSERVER_Error* property(core_object server, const char* name, int64_t version, int which, uint32_t* value)
{
  (void)version, (void)which;
  *value = 1;
  return one_name(server, name);
}

static TRITONSERVER_Error* label(
    core_object server, const char* name, int64_t version, const char* output, uint64_t index, core_text* text)
{
  (void)version, (void)output, (void)index;
  give(text, "cat");
  return one_name(server, name);
}

static TRITONSERVER_Error* model_find(core_object server, const char* name, int64_t version, core_model* model)
{
  (void)version;
  *model = (core_model){3, 2};
  return one_name(server, name);
}

static const core_place* kept_place;

void return_kept_place(void)
{
  repoagent_place_return(kept_place);
}

// A model that writes its output where the program wants it, or asks for that and then does otherwise.
static void write_there(const core_submission* it, core_output* output)
{
  uint64_t size = output->byte_size + (strstr(it->id, "larger") != NULL);
  const core_place* place = repoagent_place(it->submission, output->name, size);
  if (place == NULL) {
    return;
  }
  memcpy(place->base, output->base, output->byte_size);
  if (strstr(it->id, "elsewhere") == NULL) {
    output->base = place->base;
  }
  if (strstr(it->id, "keep") != NULL) {
    kept_place = place;
  } else {
    repoagent_place_return(place);
  }
}

// Every input comes back as an output.
static TRITONSERVER_Error* submit(const core_submission* it)
{
  core_output outputs[4] = {{0}};
  core_parameter parameter = {"note", TRITONSERVER_PARAMETER_STRING, 0, 0, "a word", 6};
  core_response response = {it->model_name, 1, it->id, NULL, outputs, 0, &parameter, 1};
  if (strcmp(it->id, "refuse") == 0) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "refused");
  }
  if (it->only_check) {
    return NULL;
  }
  for (uint64_t index = 0; index < it->input_count && index < 4; ++index) {
    const core_input* from = &it->inputs[index];
    outputs[response.output_count++] =
        (core_output){from->name, from->datatype, from->shape, from->dim_count, from->base, from->byte_size};
    if (strncmp(it->id, "place", 5) == 0) {
      write_there(it, &outputs[index]);
    }
  }
  repoagent_trace_begin(it->trace, it->model_name, 1, it->id);
  repoagent_trace_activity(it->trace, TRITONSERVER_TRACE_REQUEST_START, 1);
  for (uint64_t index = 0; index < response.output_count; ++index) {
    repoagent_trace_tensor(it->trace, TRITONSERVER_TRACE_TENSOR_BACKEND_OUTPUT, &outputs[index]);
  }
  uint64_t child = repoagent_trace_child(it->trace);
  repoagent_trace_activity(child, TRITONSERVER_TRACE_REQUEST_END, 2);
  repoagent_trace_end(child);
  if (strstr(it->id, "fail") != NULL) {
    response.error = TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, "the model failed");
  }
  repoagent_respond(it->submission, &response, strcmp(it->id, "twice") != 0);
  if (strcmp(it->id, "twice") == 0) {
    repoagent_respond(it->submission, NULL, true);
  }
  repoagent_respond(it->submission, NULL, true);  // after the end: nobody hears it
  return NULL;
}

static TRITONSERVER_Error* family_new(int kind, const char* name, const char* description, core_object* family)
{
  (void)kind, (void)description;
  *family = 1;
  return one_name(1, name);
}

static TRITONSERVER_Error* metric_new(
    core_object family, const core_parameter* labels, uint64_t count, const double* buckets, uint64_t bucket_count,
    core_object* metric)
{
  (void)buckets, (void)bucket_count;
  *metric = 2;
  return with_parameters(family, "", labels, count);
}

static TRITONSERVER_Error* metric_value(core_object metric, double* value)
{
  *value = (double)metric;
  return NULL;
}

static TRITONSERVER_Error* metric_change(core_object metric, int change, double value)
{
  (void)metric, (void)change, (void)value;
  return NULL;
}

static TRITONSERVER_Error* log_message(int level, const char* file, int line, const char* text)
{
  (void)level, (void)file, (void)line, (void)text;
  return NULL;
}

static TRITONSERVER_Error* log_is_enabled(int level, bool* enabled)
{
  (void)level;
  *enabled = true;
  return NULL;
}

static TRITONSERVER_Error* log_set(const char* setting, const char* text, int64_t number)
{
  (void)setting, (void)text, (void)number;
  return NULL;
}

static TRITONSERVER_Error* agent_location(core_object model, int* type, core_text* location)
{
  (void)model;
  *type = 0;
  give(location, "/models/m");
  return NULL;
}

static TRITONSERVER_Error* agent_text(core_object model, core_text* text)
{
  (void)model;
  give(text, "{}");
  return NULL;
}

static TRITONSERVER_Error* agent_update(core_object model, int type, const char* location)
{
  (void)model, (void)type, (void)location;
  return NULL;
}

static TRITONSERVER_Error* nothing(void)
{
  return NULL;
}

static const core stub = {
    .server_new = server_new,
    .server_stop = one_object,
    .server_delete = one_object,
    .server_set_exit_timeout = set_exit_timeout,
    .server_is = is,
    .document = document,
    .repository_register = with_parameters,
    .repository_unregister = one_name,
    .repository_poll = one_object,
    .model_load = with_parameters,
    .model_unload = unload,
    .model_is_ready = model_is_ready,
    .model_property = property,
    .model_label = label,
    .model_find = model_find,
    .submit = submit,
    .cancel = one_object,
    .family_new = family_new,
    .metric_new = metric_new,
    .metric_value = metric_value,
    .metric_change = metric_change,
    .object_delete = one_object,
    .log_message = log_message,
    .log_is_enabled = log_is_enabled,
    .log_set = log_set,
    .agent_location = agent_location,
    .agent_acquire = agent_text,
    .agent_release = one_object,
    .agent_update = agent_update,
    .agent_config = agent_text,
    .shutdown = nothing,
};

crossed_function const* layer;  // For programs that link the library, which exports none of these functions.

void use_stub(void)
{
  layer = repoagent_core_install(&stub);
}
