// Memory of outputs: asked of the program's allocator, before or after the model wrote them, and given back.
#include <stdlib.h>
#include <string.h>

#include "inference.h"

#define ALIGNMENT 64  // what backends want of memory that they write into
#define LARGE (1 << 16)

static _Atomic uint64_t copied;

uint64_t repoagent_copied_outputs(void)
{
  return atomic_load(&copied);
}

static void give_back(struct buffer* it)
{
  ++in_callback;
  TRITONSERVER_Error* error = it->allocator->release(
      it->allocator->object.handle, it->place.base, it->userp, it->place.byte_size, it->memory_type, it->memory_type_id);
  --in_callback;
  log_and_delete(error, "the allocator could not release a buffer");
  handle_return(it->allocator);
}

void buffer_let_go(struct buffer* it)
{
  if (it == NULL || atomic_fetch_sub(&it->users, 1) > 1) {
    return;
  }
  if (it->allocator != NULL) {
    give_back(it);
  } else {
    free(it->place.base);
  }
  free(it);
}

static TRITONSERVER_Error* ask_attributes(const struct submission* of, const char* name, struct buffer* to)
{
  struct allocator* allocator = of->allocator;
  TRITONSERVER_BufferAttributes* attributes = NULL;
  TRY(TRITONSERVER_BufferAttributesNew(&attributes));
  struct buffer_attributes* it = handle_borrow(attributes, KIND_BUFFER_ATTRIBUTES);
  it->byte_size = to->place.byte_size;
  it->memory_type = (int)to->memory_type;
  it->memory_type_id = to->memory_type_id;
  ++in_callback;
  TRITONSERVER_Error* error =
      allocator->attributes(allocator->object.handle, name, attributes, of->allocator_userp, to->userp);
  --in_callback;
  to->memory_type = (TRITONSERVER_MemoryType)it->memory_type;
  to->memory_type_id = it->memory_type_id;
  handle_return(it);
  handle_delete(attributes, KIND_BUFFER_ATTRIBUTES);
  return error;
}

static void ask_preference(const struct submission* of, const char* name, struct buffer* to)
{
  struct allocator* allocator = of->allocator;
  size_t size = to->place.byte_size;
  TRITONSERVER_MemoryType wanted = TRITONSERVER_MEMORY_CPU;
  int64_t wanted_id = 0;
  ++in_callback;
  TRITONSERVER_Error* error =
      allocator->query(allocator->object.handle, of->allocator_userp, name, &size, &wanted, &wanted_id);
  --in_callback;
  log_and_delete(error, "the allocator did not answer a query");
  if (wanted != TRITONSERVER_MEMORY_GPU) {
    to->memory_type = wanted;
    to->memory_type_id = wanted_id;
  }
}

static TRITONSERVER_Error* ask_allocator(const struct submission* of, const char* name, struct buffer* to)
{
  struct allocator* allocator = handle_borrow(of->allocator->object.handle, KIND_ALLOCATOR);
  if (allocator == NULL) {
    return INVALID("the allocator of the request was deleted");
  }
  if (allocator->query != NULL) {
    ask_preference(of, name, to);
  }
  ++in_callback;
  TRITONSERVER_Error* error = allocator->allocate(
      allocator->object.handle, name, to->place.byte_size, to->memory_type, to->memory_type_id, of->allocator_userp,
      &to->place.base, &to->userp, &to->memory_type, &to->memory_type_id);
  --in_callback;
  if (error != NULL) {
    handle_return(allocator);
    return error;
  }
  to->allocator = allocator;  // from here on the buffer is released
  if (allocator->attributes != NULL) {
    TRY(ask_attributes(of, name, to));
  }
  if (to->memory_type == TRITONSERVER_MEMORY_GPU) {
    return fail(TRITONSERVER_ERROR_UNSUPPORTED, "output '%s' cannot be put into the memory of a GPU", name);
  }
  if (to->place.base == NULL && to->place.byte_size > 0) {
    return fail(TRITONSERVER_ERROR_INTERNAL, "the allocator gave no buffer for output '%s'", name);
  }
  return NULL;
}

static TRITONSERVER_Error* own_memory(struct buffer* to)
{
  size_t size = to->place.byte_size;
  size_t rounded = (size / ALIGNMENT + 1) * ALIGNMENT;
  to->place.base = size < LARGE ? malloc(size + 1) : aligned_alloc(ALIGNMENT, rounded);
  return to->place.base == NULL ? out_of_memory() : NULL;
}

static TRITONSERVER_Error* allocate(const struct submission* of, const char* name, size_t size, struct buffer** buffer)
{
  struct buffer* it = calloc(1, sizeof(*it));
  if (it == NULL) {
    return out_of_memory();
  }
  it->users = 1;
  it->place.byte_size = size;
  TRITONSERVER_Error* error = of->allocator == NULL ? own_memory(it) : ask_allocator(of, name, it);
  if (error == NULL) {
    *buffer = it;
    return NULL;
  }
  if (of->allocator != NULL && it->allocator == NULL) {
    free(it);  // the allocator gave nothing
  } else {
    buffer_let_go(it);
  }
  return error;
}

TRITONSERVER_Error* outputs_start(struct submission* of)
{
  if (of->allocator == NULL || of->allocator->start == NULL || atomic_exchange(&of->started, true)) {
    return NULL;
  }
  ++in_callback;
  TRITONSERVER_Error* error = of->allocator->start(of->allocator->object.handle, of->allocator_userp);
  --in_callback;
  return error;
}

// --- before the model writes -----------------------------------------------------------------------------------------

static void keep(struct submission* of, struct placed* it)
{
  pthread_mutex_lock(&of->request->lock);
  it->next = of->placed;
  of->placed = it;
  pthread_mutex_unlock(&of->request->lock);
}

const core_place* repoagent_place(uint64_t submission, const char* name, uint64_t byte_size)
{
  struct submission* of __attribute__((cleanup(return_borrowed))) =
      handle_borrow((const void*)(uintptr_t)submission, KIND_SUBMISSION);
  struct placed* it = of == NULL ? NULL : calloc(1, sizeof(*it));
  if (it == NULL || (it->name = strdup(name)) == NULL) {
    free(it);
    return NULL;
  }
  it->error = outputs_start(of);
  if (it->error == NULL) {
    it->error = allocate(of, name, byte_size, &it->buffer);
  }
  struct buffer* buffer = it->buffer;
  if (buffer != NULL) {
    ++buffer->users;
  }
  keep(of, it);
  return buffer == NULL ? NULL : &buffer->place;
}

void repoagent_place_return(const core_place* place)
{
  buffer_let_go((struct buffer*)(uintptr_t)place);
}

// --- when the model has written --------------------------------------------------------------------------------------

// What was placed under `name`, which is the caller's now; NULL for nothing.
static struct placed* find(struct submission* of, const char* name)
{
  pthread_mutex_lock(&of->request->lock);
  struct placed** link = &of->placed;
  while (*link != NULL && strcmp((*link)->name, name) != 0) {
    link = &(*link)->next;
  }
  struct placed* found = *link;
  if (found != NULL) {
    *link = found->next;
  }
  pthread_mutex_unlock(&of->request->lock);
  return found;
}

static void forget(struct placed* it)
{
  buffer_let_go(it->buffer);
  TRITONSERVER_ErrorDelete(it->error);
  free(it->name);
  free(it);
}

// The buffer of `placed` if it has the size of `from`, or a new one.
static TRITONSERVER_Error* choose(
    struct submission* of, const core_output* from, struct placed* placed, struct buffer** buffer)
{
  if (placed != NULL && placed->error != NULL) {
    TRITONSERVER_Error* error = placed->error;
    placed->error = NULL;
    return error;
  }
  if (placed != NULL && placed->buffer != NULL && placed->buffer->place.byte_size == from->byte_size) {
    *buffer = placed->buffer;
    placed->buffer = NULL;
    return NULL;
  }
  return allocate(of, from->name, from->byte_size, buffer);
}

TRITONSERVER_Error* output_take(struct submission* of, const core_output* from, struct buffer** buffer)
{
  struct placed* placed = find(of, from->name);
  TRITONSERVER_Error* error = choose(of, from, placed, buffer);
  if (error == NULL && from->byte_size > 0 && (*buffer)->place.base != from->base) {
    memmove((*buffer)->place.base, from->base, from->byte_size);
    atomic_fetch_add(&copied, 1);
  }
  if (placed != NULL) {
    forget(placed);  // only now: `from` may lie in it
  }
  return error;
}

void outputs_end(struct submission* of)
{
  atomic_store(&of->started, false);
  pthread_mutex_lock(&of->request->lock);
  struct placed* left = of->placed;
  of->placed = NULL;
  pthread_mutex_unlock(&of->request->lock);
  while (left != NULL) {
    struct placed* it = left;
    left = it->next;
    forget(it);
  }
}
