// Attributes of buffers, and allocators of responses.
#include <stdlib.h>
#include <string.h>

#include "layer.h"

TRITONSERVER_Error* TRITONSERVER_BufferAttributesNew(TRITONSERVER_BufferAttributes** attributes)
{
  REQUIRE(attributes);
  struct buffer_attributes* it = calloc(1, sizeof(*it));
  return it == NULL ? out_of_memory() : publish(KIND_BUFFER_ATTRIBUTES, it, free, attributes);
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesDelete(TRITONSERVER_BufferAttributes* attributes)
{
  return delete_handle(attributes, KIND_BUFFER_ATTRIBUTES);
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryTypeId(
    TRITONSERVER_BufferAttributes* attributes, int64_t memory_type_id)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, it, attributes);
  it->memory_type_id = memory_type_id;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetMemoryType(
    TRITONSERVER_BufferAttributes* attributes, TRITONSERVER_MemoryType memory_type)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, it, attributes);
  if (!is_memory_type((int)memory_type)) {
    return INVALID("unknown memory type '%d'", (int)memory_type);
  }
  it->memory_type = (int)memory_type;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetCudaIpcHandle(
    TRITONSERVER_BufferAttributes* attributes, void* cuda_ipc_handle)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, it, attributes);
  it->has_ipc_handle = cuda_ipc_handle != NULL;
  if (it->has_ipc_handle) {
    memcpy(it->ipc_handle, cuda_ipc_handle, sizeof(it->ipc_handle));
  }
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesSetByteSize(TRITONSERVER_BufferAttributes* attributes, size_t byte_size)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, it, attributes);
  it->byte_size = byte_size;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesMemoryTypeId(
    TRITONSERVER_BufferAttributes* attributes, int64_t* memory_type_id)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, it, attributes);
  REQUIRE(memory_type_id);
  *memory_type_id = it->memory_type_id;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesMemoryType(
    TRITONSERVER_BufferAttributes* attributes, TRITONSERVER_MemoryType* memory_type)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, it, attributes);
  REQUIRE(memory_type);
  *memory_type = (TRITONSERVER_MemoryType)it->memory_type;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesCudaIpcHandle(
    TRITONSERVER_BufferAttributes* attributes, void** cuda_ipc_handle)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, it, attributes);
  REQUIRE(cuda_ipc_handle);
  *cuda_ipc_handle = it->has_ipc_handle ? it->ipc_handle : NULL;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_BufferAttributesByteSize(TRITONSERVER_BufferAttributes* attributes, size_t* byte_size)
{
  BORROW(KIND_BUFFER_ATTRIBUTES, buffer_attributes, it, attributes);
  REQUIRE(byte_size);
  *byte_size = it->byte_size;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorNew(
    TRITONSERVER_ResponseAllocator** allocator, TRITONSERVER_ResponseAllocatorAllocFn_t allocate,
    TRITONSERVER_ResponseAllocatorReleaseFn_t release, TRITONSERVER_ResponseAllocatorStartFn_t start)
{
  REQUIRE(allocator);
  REQUIRE(allocate);
  REQUIRE(release);
  struct allocator* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  it->allocate = allocate;
  it->release = release;
  it->start = start;
  return publish(KIND_ALLOCATOR, it, free, allocator);
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction(
    TRITONSERVER_ResponseAllocator* allocator, TRITONSERVER_ResponseAllocatorBufferAttributesFn_t function)
{
  BORROW(KIND_ALLOCATOR, allocator, it, allocator);
  it->attributes = function;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorSetQueryFunction(
    TRITONSERVER_ResponseAllocator* allocator, TRITONSERVER_ResponseAllocatorQueryFn_t function)
{
  BORROW(KIND_ALLOCATOR, allocator, it, allocator);
  it->query = function;
  return NULL;
}

TRITONSERVER_Error* TRITONSERVER_ResponseAllocatorDelete(TRITONSERVER_ResponseAllocator* allocator)
{
  return delete_handle(allocator, KIND_ALLOCATOR);
}
