#include <stdlib.h>
#include <string.h>

#include "api.h"

#define MOST_DIMS 1000

void tensor_destroy(void* object)
{
  struct tensor* it = object;
  if (it->memory == NULL) {
    free(it->data);
  }
  handle_return(it->memory);
  free(it->shape);
  free(it->name);
  free(it);
}

bool tensor_use(struct tensor* it)
{
  int users = it->users;
  do {
    if (users < 0) {
      return false;
    }
  } while (!atomic_compare_exchange_weak(&it->users, &users, users + 1));
  return true;
}

void tensor_leave(struct tensor* it)
{
  --it->users;
}

// An error while a request reads the tensor; without one, it is the caller's until tensor_changed.
static TRITONSERVER_Error* change_tensor(struct tensor* it)
{
  int none = 0;
  if (it->memory != NULL) {
    return INVALID("an output cannot be changed");
  }
  return atomic_compare_exchange_strong(&it->users, &none, -1)
             ? NULL
             : INVALID("a request runs with the tensor; wait for its last answer");
}

static void tensor_changed(struct tensor* it)
{
  it->users = 0;
}

// How many elements a shape has; false if that is no number of bytes.
static bool count_elements(const int64_t* shape, uint64_t rank, size_t item_size, size_t* count)
{
  *count = 1;
  for (uint64_t dim = 0; dim < rank; ++dim) {
    if (shape[dim] < 0 || __builtin_mul_overflow(*count, (size_t)shape[dim], count)) {
      return false;
    }
  }
  size_t bytes;
  return !__builtin_mul_overflow(*count, item_size, &bytes) && bytes <= INT64_MAX;
}

repoagent_tensor repoagent_tensor_create(repoagent_type type, const int64_t* shape, uint64_t rank)
{
  size_t item = type == REPOAGENT_BYTES ? 4 : TRITONSERVER_DataTypeByteSize((TRITONSERVER_DataType)type);
  size_t count = 0;
  if (item == 0) {
    settle(INVALID("not a type of tensors: %d", (int)type));
    return NULL;
  }
  if (rank > MOST_DIMS || (rank > 0 && shape == NULL) || !count_elements(shape, rank, item, &count)) {
    settle(INVALID("not a shape of %llu dimensions", (unsigned long long)rank));
    return NULL;
  }
  struct tensor* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return created(KIND_TENSOR, NULL, tensor_destroy);
  }
  it->type = (int)type;
  it->rank = rank;
  it->byte_size = count * item;
  it->shape = copy_shape(shape, rank);
  it->data = calloc(count + 1, item);
  if (it->shape == NULL || it->data == NULL) {
    tensor_destroy(it);
    return created(KIND_TENSOR, NULL, tensor_destroy);
  }
  return created(KIND_TENSOR, it, tensor_destroy);
}

repoagent_error repoagent_tensor_delete(repoagent_tensor tensor)
{
  return settle(delete_handle(tensor, KIND_TENSOR));
}

repoagent_error repoagent_tensor_get_type(repoagent_tensor tensor, repoagent_type* type)
{
  HOLD(KIND_TENSOR, tensor, it, tensor);
  NEED(type);
  *type = (repoagent_type)it->type;
  return REPOAGENT_NO_ERROR;
}

repoagent_error repoagent_tensor_get_shape(repoagent_tensor tensor, const int64_t** shape, uint64_t* rank)
{
  HOLD(KIND_TENSOR, tensor, it, tensor);
  NEED(shape);
  NEED(rank);
  *shape = it->shape;
  *rank = it->rank;
  return REPOAGENT_NO_ERROR;
}

repoagent_error repoagent_tensor_get_data(repoagent_tensor tensor, void** data, size_t* byte_size)
{
  HOLD(KIND_TENSOR, tensor, it, tensor);
  NEED(data);
  NEED(byte_size);
  if (it->type == TRITONSERVER_TYPE_BYTES) {
    return settle(INVALID("a tensor of strings: use repoagent_tensor_get_string"));
  }
  *data = it->data;
  *byte_size = it->byte_size;
  return REPOAGENT_NO_ERROR;
}

repoagent_error repoagent_tensor_set_data(repoagent_tensor tensor, const void* data, size_t byte_size)
{
  HOLD(KIND_TENSOR, tensor, it, tensor);
  NEED(data);
  if (it->type == TRITONSERVER_TYPE_BYTES) {
    return settle(INVALID("a tensor of strings: use repoagent_tensor_set_strings"));
  }
  if (byte_size != it->byte_size) {
    return settle(INVALID("the tensor has %zu bytes, not %zu", it->byte_size, byte_size));
  }
  TRITONSERVER_Error* error = change_tensor(it);
  if (error == NULL) {
    memcpy(it->data, data, byte_size);
    tensor_changed(it);
  }
  return settle(error);
}

// Strings lie one behind the other, each as 4 bytes of size and its bytes.
repoagent_error repoagent_tensor_set_strings(
    repoagent_tensor tensor, const char* const* strings, const size_t* sizes, uint64_t count)
{
  HOLD(KIND_TENSOR, tensor, it, tensor);
  NEED(strings);
  size_t wanted = 0;
  count_elements(it->shape, it->rank, 4, &wanted);
  if (it->type != TRITONSERVER_TYPE_BYTES || it->memory != NULL || count != wanted) {
    return settle(INVALID("not a tensor of yours of %llu strings", (unsigned long long)count));
  }
  for (uint64_t index = 0; index < count; ++index) {
    NEED(strings[index]);
  }
  struct builder text = {0};
  build(&text, "", 0);
  for (uint64_t index = 0; index < count; ++index) {
    size_t size = sizes == NULL ? strlen(strings[index]) : sizes[index];
    uint32_t head = (uint32_t)size;
    text.failed |= size > UINT32_MAX;
    build(&text, (const char*)&head, sizeof(head));
    build(&text, strings[index], size);
  }
  if (text.failed) {
    free(text.text);
    return settle(out_of_memory());
  }
  TRITONSERVER_Error* error = change_tensor(it);
  if (error != NULL) {
    free(text.text);
    return settle(error);
  }
  free(it->data);
  it->data = text.text;
  it->byte_size = text.size;
  tensor_changed(it);
  return REPOAGENT_NO_ERROR;
}

repoagent_error repoagent_tensor_get_string(
    repoagent_tensor tensor, uint64_t index, const char** text, size_t* byte_size)
{
  HOLD(KIND_TENSOR, tensor, it, tensor);
  NEED(text);
  NEED(byte_size);
  const char* at = it->data;
  const char* end = at + it->byte_size;
  uint32_t size = 0;
  for (uint64_t before = 0; it->type == TRITONSERVER_TYPE_BYTES && (size_t)(end - at) >= sizeof(size); ++before) {
    memcpy(&size, at, sizeof(size));
    at += sizeof(size);
    if ((size_t)(end - at) < size) {
      break;
    }
    if (before == index) {
      *text = at;
      *byte_size = size;
      return REPOAGENT_NO_ERROR;
    }
    at += size;
  }
  return settle(fail(TRITONSERVER_ERROR_NOT_FOUND, "the tensor has no string %llu", (unsigned long long)index));
}
