// The outputs of the last answer to a request.
#include <stdlib.h>
#include <string.h>

#include "request.h"

// Output number `index` of `answer` as a tensor over its memory; NULL with an error.
static TRITONSERVER_Error* output_at(TRITONSERVER_InferenceResponse* answer, uint32_t index, struct tensor* it)
{
  const char* name;
  const int64_t* shape;
  const void* base;
  TRITONSERVER_DataType type;
  TRITONSERVER_MemoryType memory_type;
  int64_t memory_type_id;
  void* userp;
  TRY(TRITONSERVER_InferenceResponseOutput(
      answer, index, &name, &type, &shape, &it->rank, &base, &it->byte_size, &memory_type, &memory_type_id, &userp));
  it->type = (int)type;
  it->data = (void*)(uintptr_t)base;
  it->shape = copy_shape(shape, it->rank);
  return it->shape == NULL ? out_of_memory() : set_text(&it->name, name);
}

static TRITONSERVER_Error* find_output(
    TRITONSERVER_InferenceResponse* answer, const char* name, uint64_t index, struct tensor* it)
{
  uint32_t count = 0;
  TRITONSERVER_Error* none = TRITONSERVER_InferenceResponseOutputCount(answer, &count);
  if (none != NULL) {
    TRITONSERVER_ErrorDelete(none);
    return fail(TRITONSERVER_ERROR_NOT_FOUND, "the request has no answer with outputs");
  }
  for (uint32_t place = 0; place < count; ++place) {
    if (name == NULL && place != index) {
      continue;
    }
    free(it->shape);
    it->shape = NULL;
    TRY(output_at(answer, place, it));
    if (name == NULL || strcmp(it->name, name) == 0) {
      return NULL;
    }
  }
  it->data = NULL;
  return name == NULL ? fail(TRITONSERVER_ERROR_NOT_FOUND, "the answer has %u outputs", count)
                      : fail(TRITONSERVER_ERROR_NOT_FOUND, "the answer has no output '%s'", name);
}

repoagent_error repoagent_request_get_output(
    repoagent_request request, const char* name, uint64_t index, repoagent_tensor* tensor, const char** found)
{
  HOLD(KIND_API_REQUEST, api_request, it, request);
  NEED(tensor);
  struct tensor* output = calloc(1, sizeof(*output));
  if (output == NULL) {
    return settle(out_of_memory());
  }
  pthread_mutex_lock(&it->lock);
  output->memory = handle_borrow(it->answer, KIND_RESPONSE);
  TRITONSERVER_Error* error = find_output(it->answer, name, index, output);
  pthread_mutex_unlock(&it->lock);
  if (error != NULL) {
    tensor_destroy(output);
    return settle(error);
  }
  const char* kept = output->name;
  error = publish(KIND_TENSOR, output, tensor_destroy, tensor);
  if (error == NULL && found != NULL) {
    *found = kept;
  }
  return settle(error);
}
