#pragma once

#include "core.h"

// From now on the layer asks a table without Python.
void use_stub(void);

// What a request with "keep" in its id keeps of the memory for its output.
void return_kept_place(void);

uint64_t repoagent_living_handles(void);
