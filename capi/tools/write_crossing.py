"""Write the C source of the extension ``_crossing`` from ``core.h``: cffi's, with a table of functions in Python."""

import re
import sys
from pathlib import Path

from cffi import FFI

_ERRORS = """
typedef struct TRITONSERVER_Error TRITONSERVER_Error;
TRITONSERVER_Error* TRITONSERVER_ErrorNew(int code, const char* text);
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error* error);
int TRITONSERVER_ErrorCode(TRITONSERVER_Error* error);
const char* TRITONSERVER_ErrorMessage(TRITONSERVER_Error* error);
void install(void);
"""


def declarations(header: str) -> str:
    """``core.h`` as cffi takes it: without comments, directives, and attributes."""
    text = re.sub(r"//[^\n]*", "", header)
    text = re.sub(r"^#.*$", "", text, flags=re.MULTILINE)
    return text.replace("TRITONSERVER_DECLSPEC", "")


def functions(header: str) -> dict[str, str]:
    """Name of each function of the table -> its parameters."""
    table = declarations(header).partition("typedef struct core {")[2].partition("} core;")[0]
    return {name: " ".join(rest.split()) for name, rest in re.findall(r"\(\*(\w+)\)\(([^)]*)\)", table)}


def main(header_path: str, target: str) -> None:
    """Read the one, write the other."""
    header = Path(header_path).read_text(encoding="utf-8")
    table = functions(header)
    python = "\n".join(f"TRITONSERVER_Error* python_{name}({parameters});" for name, parameters in table.items())
    fields = "\n".join(f"  .{name} = python_{name}," for name in table)
    ffi = FFI()
    ffi.cdef(_ERRORS + declarations(header) + f'extern "Python" {{\n{python}\n}}')
    prototypes = "\n".join(f"static TRITONSERVER_Error* python_{name}({rest});" for name, rest in table.items())
    source = (
        f'#include "core.h"\n{prototypes}\nstatic const core table = {{\n{fields}\n}};\n'
        "static void install(void)\n{\n  repoagent_core_install(&table);\n}\n"
    )
    ffi.set_source("repoagent_capi._crossing", source)
    ffi.emit_c_code(target)


main(*sys.argv[1:])
