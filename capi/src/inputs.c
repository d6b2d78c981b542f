// The inputs of requests and their data, and the outputs that are asked for.
#include <stdlib.h>
#include <string.h>

#include "requests.h"

#define MOST_DIMS 1000
// Triton's name of the host policy of instances on the CPU, where inputs lie here.
#define OWN_POLICY "cpu"

static void clear_pieces(struct input* input)
{
  free(input->pieces);
  free(input->own_pieces);
  input->pieces = input->own_pieces = NULL;
  input->piece_count = input->own_count = 0;
}

static void clear_input(struct input* input)
{
  clear_pieces(input);
  free(input->name);
  free(input->shape);
}

void clear_inputs(struct request* it)
{
  for (size_t index = 0; index < it->input_count; ++index) {
    clear_input(&it->inputs[index]);
  }
  it->input_count = 0;
}

void clear_outputs(struct request* it)
{
  for (size_t index = 0; index < it->output_count; ++index) {
    free(it->outputs[index]);
  }
  it->output_count = 0;
}

static struct input* find_input(const struct request* it, const char* name)
{
  for (size_t index = 0; index < it->input_count; ++index) {
    if (strcmp(it->inputs[index].name, name) == 0) {
      return &it->inputs[index];
    }
  }
  return NULL;
}

#define FIND_INPUT(input, name)                                       \
  struct input* input = find_input(it, name);                         \
  if (input == NULL) {                                                \
    return INVALID("input '%s' does not exist in request", name);     \
  }

static TRITONSERVER_Error* add_input(
    struct request* it, const char* name, int datatype, const int64_t* shape, uint64_t dim_count)
{
  if (!grow(&it->inputs, it->input_count, sizeof(*it->inputs))) {
    return out_of_memory();
  }
  struct input added = {0};
  added.name = strdup(name);
  added.shape = copy_shape(shape, dim_count);
  if (added.name == NULL || added.shape == NULL) {
    clear_input(&added);
    return out_of_memory();
  }
  added.datatype = datatype;
  added.dim_count = dim_count;
  it->inputs[it->input_count++] = added;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddInput(
    TRITONSERVER_InferenceRequest* request, const char* name, const TRITONSERVER_DataType datatype,
    const int64_t* shape, uint64_t dim_count)
{
  CHANGE();
  REQUIRE(name);
  if (!is_data_type((int)datatype)) {
    return INVALID("input '%s' cannot be of type %d", name, (int)datatype);
  }
  if (dim_count > MOST_DIMS || (dim_count > 0 && shape == NULL)) {
    return INVALID("input '%s': not a shape of %llu dimensions", name, (unsigned long long)dim_count);
  }
  if (find_input(it, name) != NULL) {
    return INVALID("input '%s' already exists in request", name);
  }
  return add_input(it, name, (int)datatype, shape, dim_count);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRawInput(TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  if (it->input_count > 0) {
    return INVALID("raw input '%s' can't be added to a request that has other inputs", name);
  }
  return add_input(it, name, TRITONSERVER_TYPE_INVALID, NULL, 0);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveInput(TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  FIND_INPUT(input, name);
  clear_input(input);
  size_t behind = it->input_count - (size_t)(input - it->inputs) - 1;
  memmove(input, input + 1, behind * sizeof(*input));
  --it->input_count;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllInputs(TRITONSERVER_InferenceRequest* request)
{
  CHANGE();
  clear_inputs(it);
  return NULL;
}

// `policy`: NULL for data that counts where there is none of a model's own policy.
static TRITONSERVER_Error* append(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, const char* policy)
{
  CHANGE();
  REQUIRE(name);
  FIND_INPUT(input, name);
  if (base == NULL && byte_size > 0) {
    return INVALID("input '%s': argument 'base' is NULL, and its size %zu", name, byte_size);
  }
  if (!is_memory_type((int)memory_type)) {
    return INVALID("input '%s': unknown memory type '%d'", name, (int)memory_type);
  }
  if (memory_type == TRITONSERVER_MEMORY_GPU) {
    return fail(
        TRITONSERVER_ERROR_UNSUPPORTED, "input '%s' lies in the memory of GPU %lld; move it to the CPU", name,
        (long long)memory_type_id);
  }
  if (byte_size > INT64_MAX) {
    return INVALID("input '%s': not a size: %zu", name, byte_size);
  }
  if (policy != NULL && strcmp(policy, OWN_POLICY) != 0) {
    return NULL;  // No model here executes under it.
  }
  struct piece** pieces = policy == NULL ? &input->pieces : &input->own_pieces;
  size_t* count = policy == NULL ? &input->piece_count : &input->own_count;
  if (!grow(pieces, *count, sizeof(**pieces))) {
    return out_of_memory();
  }
  (*pieces)[(*count)++] = (struct piece){base, byte_size};
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputData(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id)
{
  return append(request, name, base, byte_size, memory_type, memory_type_id, NULL);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputDataWithHostPolicy(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base, size_t byte_size,
    TRITONSERVER_MemoryType memory_type, int64_t memory_type_id, const char* host_policy)
{
  REQUIRE(host_policy);
  return append(request, name, base, byte_size, memory_type, memory_type_id, host_policy);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAppendInputDataWithBufferAttributes(
    TRITONSERVER_InferenceRequest* request, const char* name, const void* base,
    TRITONSERVER_BufferAttributes* attributes)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, about, attributes);
  return TRITONSERVER_InferenceRequestAppendInputData(
      request, name, base, about->byte_size, (TRITONSERVER_MemoryType)about->memory_type, about->memory_type_id);
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllInputData(
    TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  FIND_INPUT(input, name);
  clear_pieces(input);
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestAddRequestedOutput(
    TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  for (size_t index = 0; index < it->output_count; ++index) {
    if (strcmp(it->outputs[index], name) == 0) {
      return NULL;
    }
  }
  char* copy = grow(&it->outputs, it->output_count, sizeof(*it->outputs)) ? strdup(name) : NULL;
  if (copy == NULL) {
    return out_of_memory();
  }
  it->outputs[it->output_count++] = copy;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveRequestedOutput(
    TRITONSERVER_InferenceRequest* request, const char* name)
{
  CHANGE();
  REQUIRE(name);
  for (size_t index = 0; index < it->output_count; ++index) {
    if (strcmp(it->outputs[index], name) == 0) {
      free(it->outputs[index]);
      memmove(&it->outputs[index], &it->outputs[index + 1], (--it->output_count - index) * sizeof(*it->outputs));
      return NULL;
    }
  }
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_InferenceRequestRemoveAllRequestedOutputs(TRITONSERVER_InferenceRequest* request)
{
  CHANGE();
  clear_outputs(it);
  return NULL;
}
