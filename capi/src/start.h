#pragma once

#include "triton/core/tritonserver.h"

// Start Python in this process, unless it runs already, and import what fills the table.
TRITONSERVER_Error* start_python(void);
