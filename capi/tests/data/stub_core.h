#pragma once

#include "core.h"

// From now on the layer asks a table without Python.
void use_stub(void);

uint64_t repoagent_living_handles(void);
