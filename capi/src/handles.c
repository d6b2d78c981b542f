#include "handles.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdlib.h>

_Static_assert(sizeof(void*) == 8, "handles need 64 bits");

// A slot's state: generation (34 bits), kind (5), living (1), borrowers (24).
// A handle:       generation (34 bits), place (24), kind (5), and a 1 that no address of an object ends with.
#define BORROWERS UINT64_C(0xffffff)
#define LIVING (UINT64_C(1) << 24)
#define KIND_SHIFT 25
#define GENERATION_SHIFT 30
#define GENERATIONS ((UINT64_C(1) << 34) - 1)
#define IDENTITY (~(LIVING | BORROWERS))

#define SEGMENT_SIZE 4096u
#define SEGMENTS 4096u
#define NO_SLOT UINT32_MAX

struct slot {
  _Atomic uint64_t state;
  struct object* object;
  uint32_t place;
  uint32_t next_free;
};

static _Atomic(struct slot*) segments[SEGMENTS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t first_free = NO_SLOT;
static uint32_t used;
static _Atomic uint64_t living;

static struct slot* slot_at(uint32_t place)
{
  struct slot* segment = atomic_load_explicit(&segments[place / SEGMENT_SIZE], memory_order_acquire);
  return segment == NULL ? NULL : &segment[place % SEGMENT_SIZE];
}

static struct slot* new_slot(void)
{
  if (used == SEGMENTS * SEGMENT_SIZE) {
    return NULL;
  }
  if (used % SEGMENT_SIZE == 0) {
    struct slot* segment = calloc(SEGMENT_SIZE, sizeof(struct slot));
    if (segment == NULL) {
      return NULL;
    }
    atomic_store_explicit(&segments[used / SEGMENT_SIZE], segment, memory_order_release);
  }
  struct slot* slot = slot_at(used);
  slot->place = used++;
  return slot;
}

static struct slot* take_slot(void)
{
  pthread_mutex_lock(&lock);
  struct slot* slot = first_free == NO_SLOT ? new_slot() : slot_at(first_free);
  if (slot != NULL && first_free != NO_SLOT) {
    first_free = slot->next_free;
  }
  pthread_mutex_unlock(&lock);
  return slot;
}

static void free_slot(struct slot* slot)
{
  if (atomic_load(&slot->state) >> GENERATION_SHIFT == GENERATIONS) {
    return;  // its next handles would look like its first: retired
  }
  pthread_mutex_lock(&lock);
  slot->next_free = first_free;
  first_free = slot->place;
  pthread_mutex_unlock(&lock);
}

void* handle_new(enum kind kind, void* object, void (*destroy)(void*))
{
  struct slot* slot = take_slot();
  if (slot == NULL) {
    return NULL;
  }
  uint64_t generation = (atomic_load(&slot->state) >> GENERATION_SHIFT) + 1;
  uint64_t handle = generation << GENERATION_SHIFT | (uint64_t)slot->place << 6 | (uint64_t)kind << 1 | 1;
  struct object* header = object;
  header->destroy = destroy;
  header->handle = (void*)(uintptr_t)handle;
  slot->object = header;
  atomic_fetch_add(&living, 1);
  atomic_store(&slot->state, generation << GENERATION_SHIFT | (uint64_t)kind << KIND_SHIFT | LIVING);
  return header->handle;
}

// The slot that a handle names, and the identity its state must have; NULL if no handle looks like that.
static struct slot* slot_of(const void* handle, enum kind kind, uint64_t* identity)
{
  uint64_t bits = (uint64_t)(uintptr_t)handle;
  if ((bits & 1) == 0 || (bits >> 1 & 31) != (uint64_t)kind) {
    return NULL;
  }
  *identity = bits >> GENERATION_SHIFT << GENERATION_SHIFT | (uint64_t)kind << KIND_SHIFT;
  return slot_at((uint32_t)(bits >> 6) & 0xffffff);
}

void* handle_borrow(const void* handle, enum kind kind)
{
  uint64_t identity;
  struct slot* slot = slot_of(handle, kind, &identity);
  if (slot == NULL) {
    return NULL;
  }
  uint64_t state = atomic_load(&slot->state);
  do {
    if ((state & IDENTITY) != identity || (state & LIVING) == 0 || (state & BORROWERS) == BORROWERS) {
      return NULL;
    }
  } while (!atomic_compare_exchange_weak(&slot->state, &state, state + 1));
  return slot->object;
}

static void end(struct slot* slot)
{
  struct object* object = slot->object;
  object->destroy(object);
  atomic_fetch_sub(&living, 1);
  free_slot(slot);
}

void handle_return(void* object)
{
  struct object* header = object;
  if (header == NULL) {
    return;
  }
  struct slot* slot = slot_at((uint32_t)((uint64_t)(uintptr_t)header->handle >> 6) & 0xffffff);
  uint64_t before = atomic_fetch_sub(&slot->state, 1);
  if ((before & BORROWERS) == 1 && (before & LIVING) == 0) {
    end(slot);
  }
}

bool handle_delete(const void* handle, enum kind kind)
{
  uint64_t identity;
  struct slot* slot = slot_of(handle, kind, &identity);
  if (slot == NULL) {
    return false;
  }
  uint64_t state = atomic_load(&slot->state);
  do {
    if ((state & IDENTITY) != identity || (state & LIVING) == 0) {
      return false;
    }
  } while (!atomic_compare_exchange_weak(&slot->state, &state, state & ~LIVING));
  if ((state & BORROWERS) == 0) {
    end(slot);
  }
  return true;
}

const char* kind_name(enum kind kind)
{
  static const char* const names[] = {
      "handle",
#define TEXT(name, text) text,
      KINDS(TEXT)
#undef TEXT
  };
  return names[kind < sizeof(names) / sizeof(*names) ? kind : 0];
}

uint64_t repoagent_living_handles(void)
{
  return atomic_load(&living);
}
