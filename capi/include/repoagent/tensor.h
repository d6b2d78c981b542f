/* Tensors: a type, a shape, and memory of their own. */
#ifndef REPOAGENT_TENSOR_H
#define REPOAGENT_TENSOR_H

#include <stddef.h>
#include <stdint.h>

#include "repoagent/error.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct repoagent_tensor_handle* repoagent_tensor;

typedef enum repoagent_type {
  REPOAGENT_BOOL = 1,
  REPOAGENT_UINT8 = 2,
  REPOAGENT_UINT16 = 3,
  REPOAGENT_UINT32 = 4,
  REPOAGENT_UINT64 = 5,
  REPOAGENT_INT8 = 6,
  REPOAGENT_INT16 = 7,
  REPOAGENT_INT32 = 8,
  REPOAGENT_INT64 = 9,
  REPOAGENT_FP16 = 10,
  REPOAGENT_FP32 = 11,
  REPOAGENT_FP64 = 12,
  REPOAGENT_BYTES = 13,
  REPOAGENT_BF16 = 14
} repoagent_type;

/* A tensor of zeros, or of empty strings. NULL: see repoagent_error_get_message. */
REPOAGENT_API repoagent_tensor repoagent_tensor_create(repoagent_type type, const int64_t* shape, uint64_t rank);
REPOAGENT_API repoagent_error repoagent_tensor_delete(repoagent_tensor tensor);

REPOAGENT_API repoagent_error repoagent_tensor_get_type(repoagent_tensor tensor, repoagent_type* type);

/* The shape belongs to the tensor. */
REPOAGENT_API repoagent_error repoagent_tensor_get_shape(repoagent_tensor tensor, const int64_t** shape, uint64_t* rank);

/* The memory belongs to the tensor; write only to tensors of yours, with which no request runs. Strings have none that
   can be looked at. */
REPOAGENT_API repoagent_error repoagent_tensor_get_data(repoagent_tensor tensor, void** data, size_t* byte_size);

/* Copy values in: as many bytes as the tensor has. Refused while a request runs with the tensor, as are strings. */
REPOAGENT_API repoagent_error repoagent_tensor_set_data(repoagent_tensor tensor, const void* data, size_t byte_size);

/* Copy strings in: as many as the shape asks for. `sizes` may be NULL where each ends with a NUL. */
REPOAGENT_API repoagent_error
repoagent_tensor_set_strings(repoagent_tensor tensor, const char* const* strings, const size_t* sizes, uint64_t count);

/* A string of a tensor, which belongs to it. It does not end with a NUL. */
REPOAGENT_API repoagent_error
repoagent_tensor_get_string(repoagent_tensor tensor, uint64_t index, const char** text, size_t* byte_size);

#ifdef __cplusplus
}
#endif
#endif
