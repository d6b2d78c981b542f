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
    return re.sub(r"\b(TRITONSERVER_DECLSPEC|CROSSED)\b", "", text)


def functions(header: str) -> dict[str, str]:
    """Name of each function of the table -> its parameters."""
    table = declarations(header).partition("typedef struct core {")[2].partition("} core;")[0]
    return {name: " ".join(rest.split()) for name, rest in re.findall(r"\(\*(\w+)\)\(([^)]*)\)", table)}


def calls(header: str, layer: str, kind: str = "static ") -> str:
    """A ``kind`` function for each that the layer hands over, which calls it over the variable ``layer``, by its place
    in the list of ``core.c``."""
    text = re.sub(r"//[^\n]*", "", header)
    found = {
        name: (result.strip(), [part.strip() for part in rest.split(",") if part.strip() != "void"])
        for result, name, rest in re.findall(r"^CROSSED ([^;(]*?)\b(\w+)\(([^;]*?)\);", text, flags=re.MULTILINE)
    }
    order = re.findall(r"\(crossed_function\)(\w+)", layer)
    if sorted(order) != sorted(found):
        raise SystemExit(f"core.h and CROSSED_FUNCTIONS of core.c differ: {sorted({*order} ^ {*found})}")
    made = []
    for place, name in enumerate(order):
        result, parameters = found[name]
        given = ", ".join(re.findall(r"(\w+)$", parameter)[0] for parameter in parameters)
        types = ", ".join(parameters) or "void"
        back = "" if result == "void" else "return "
        made.append(
            f"{kind}{result} {name}({types})\n{{\n  {back}(({result} (*)({types}))layer[{place}])({given});\n}}\n"
        )
    return "".join(made)


def main(header_path: str, layer_path: str, target: str) -> None:
    """Read the first two, write the last."""
    header = Path(header_path).read_text(encoding="utf-8")
    table = functions(header)
    python = "\n".join(f"TRITONSERVER_Error* python_{name}({parameters});" for name, parameters in table.items())
    fields = "\n".join(f"  .{name} = python_{name}," for name in table)
    ffi = FFI()
    ffi.cdef(_ERRORS + declarations(header) + f'extern "Python" {{\n{python}\n}}')
    prototypes = "\n".join(f"static TRITONSERVER_Error* python_{name}({rest});" for name, rest in table.items())
    forwards = calls(header, Path(layer_path).read_text(encoding="utf-8"))
    source = (
        f'#define CROSSED static\n#include "core.h"\nstatic crossed_function const* layer;\n{forwards}'
        f"{prototypes}\nstatic const core table = {{\n{fields}\n}};\n"
        "static void install(void)\n{\n  layer = repoagent_core_install(&table);\n}\n"
    )
    ffi.set_source("repoagent_capi._crossing", source)
    ffi.emit_c_code(target)


if __name__ == "__main__":
    main(*sys.argv[1:])
