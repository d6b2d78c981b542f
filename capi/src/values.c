// What requests and responses hold: shapes, named values, lists that grow.
#include <stdlib.h>
#include <string.h>

#include "layer.h"

#define MOST_ITEMS 100000

void free_values(struct named_value* values, size_t count)
{
  for (size_t index = 0; index < count; ++index) {
    free(values[index].name);
    free(values[index].text);
  }
  free(values);
}

int64_t* copy_shape(const int64_t* shape, uint64_t rank)
{
  int64_t* copy = malloc((rank + 1) * sizeof(*copy));
  if (copy != NULL && rank > 0) {
    memcpy(copy, shape, rank * sizeof(*copy));
  }
  return copy;
}

bool grow(void* list, size_t count, size_t size)
{
  if (count >= MOST_ITEMS) {
    return false;
  }
  if ((count & (count - 1)) != 0 && count != 0) {
    return true;
  }
  void* larger = realloc(*(void**)list, (count == 0 ? 4 : 2 * count) * size);
  if (larger == NULL) {
    return false;
  }
  *(void**)list = larger;
  return true;
}
