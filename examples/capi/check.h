/* What the examples do with an error: they print it and end. */
#ifndef CHECK_H
#define CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "repoagent/error.h"

static void check(int good, const char* what)
{
  const char* message = "";
  if (!good) {
    repoagent_error_get_message(&message);
    fprintf(stderr, "%s%s%s\n", what, *message == '\0' ? "" : ": ", message);
    exit(1);
  }
}

#define MADE(handle) check((handle) != NULL, #handle)
#define DONE(call) check((call) == REPOAGENT_NO_ERROR, #call)

#endif
