"""A C program that calls every function of the headers with every misuse, and prints each answer that is wrong.

Each function is called once as it should be, and once more for each argument and each wrong value of it. Handles are
NULL, of each other type, deleted, or made up; pointers are NULL; numbers are far too large.
"""

import re
from pathlib import Path
from typing import NamedTuple

HANDLES = {
    "TRITONSERVER_BufferAttributes",
    "TRITONSERVER_Error",
    "TRITONSERVER_InferenceRequest",
    "TRITONSERVER_InferenceResponse",
    "TRITONSERVER_InferenceTrace",
    "TRITONSERVER_Message",
    "TRITONSERVER_Metric",
    "TRITONSERVER_MetricArgs",
    "TRITONSERVER_MetricFamily",
    "TRITONSERVER_Metrics",
    "TRITONSERVER_Parameter",
    "TRITONSERVER_ResponseAllocator",
    "TRITONSERVER_Server",
    "TRITONSERVER_ServerOptions",
    "TRITONREPOAGENT_Agent",
    "TRITONREPOAGENT_AgentModel",
}
OWN_HANDLES = {"repoagent_tensor", "repoagent_server", "repoagent_model", "repoagent_request", "repoagent_agent"}
MAY_BE_NULL = {
    ("TRITONSERVER_BufferAttributesSetCudaIpcHandle", "cuda_ipc_handle"),
    ("TRITONSERVER_InferenceRequestSetId", "id"),
    ("TRITONSERVER_MetricArgsDelete", "args"),
    ("TRITONSERVER_LogMessage", "file"),
    ("TRITONSERVER_ResponseAllocatorNew", "start"),
    ("TRITONSERVER_ResponseAllocatorSetBufferAttributesFunction", "function"),
    ("TRITONSERVER_ResponseAllocatorSetQueryFunction", "function"),
    ("TRITONSERVER_ServerInferAsync", "trace"),
    ("TRITONSERVER_ServerOptionsSetLogFile", "file"),
    ("TRITONREPOAGENT_ModelRepositoryLocationRelease", "location"),
    ("TRITONREPOAGENT_ModelSetState", "state"),
    ("TRITONREPOAGENT_SetState", "state"),
    ("repoagent_request_set_callback", "callback"),
}
"""What may be left out, by function and parameter."""
ALWAYS_MAY_BE_NULL = {"allocator_userp", "labels", "name_mapping", "parameters", "userp", "voidp"}
"""The same in every function: what is the program's own, a list of nothing, an answer that is not wanted."""
SIZES_OF_OTHERS = {"byte_size"}
"""Sizes of memory that the function reads: a wrong one cannot be found out."""


class Function(NamedTuple):
    """One declaration of a header."""

    name: str
    result: str
    parameters: tuple[tuple[str, str], ...]


def functions(*headers: Path) -> list[Function]:
    """Every function that the library exports by these headers."""
    found = []
    for header in headers:
        text = re.sub(r"//[^\n]*", "", header.read_text())
        for result, name, rest in re.findall(r"TRITON\w+_DECLSPEC ([^;(]*?)\b(TRITON\w+)\(([^;]*)\);", text):
            parameters = [re.fullmatch(r"\s*(.*?)\s*(\w+)\s*", part) for part in " ".join(rest.split()).split(",")]
            pairs = tuple((part[1].replace("const ", "").strip(), part[2]) for part in parameters if part is not None)
            found.append(Function(name, result.strip(), pairs))
    return found


def own_functions(directory: Path) -> list[Function]:
    """Every function of repoagent's own headers, but the one that a macro calls."""
    found = []
    for header in sorted(directory.glob("*.h")):
        text = re.sub(r"/\*.*?\*/", "", header.read_text(), flags=re.DOTALL)
        for result, name, rest in re.findall(r"REPOAGENT_API\s+([\w*]+)\s+(repoagent_\w+)\(([^;]*?)\);", text):
            parts = [re.fullmatch(r"\s*(.*?)\s*(\w+)\s*", part) for part in " ".join(rest.split()).split(",")]
            pairs = tuple((part[1].replace("const ", "").strip(), part[2]) for part in parts if part and part[1])
            found.append(Function(name, result, tuple((kind.replace(" const*", "*"), name) for kind, name in pairs)))
    return [function for function in found if function.name != "repoagent_agent_call"]


def kind_of(parameter: str) -> str | None:
    """The handle that a parameter is."""
    if parameter in OWN_HANDLES:
        return parameter
    name = parameter.removesuffix("*")
    return name if parameter.endswith("*") and name in HANDLES else None


def good(function: Function, parameter: str, name: str) -> str:
    """An argument that is as it should be."""
    handle = kind_of(parameter)
    if handle is not None:
        return f"make_{handle}()"
    if parameter.endswith(("Fn_t", "_callback")):
        return f"({parameter})nothing"
    if parameter.endswith("*"):
        return _pointer(parameter, name)
    numbers = {
        "byte_size": {"TRITONSERVER_MessageNewFromSerializedJson": "2", "repoagent_tensor_set_data": "4"},
        "kind": {"TRITONSERVER_ServerOptionsSetModelLoadDeviceLimit": "TRITONSERVER_INSTANCEGROUPKIND_GPU"},
    }
    special = numbers.get(name, {}).get(function.name)
    return special or TYPES.get(parameter) or ("1" if name in ONES else "0")


TYPES = {"repoagent_type": "REPOAGENT_FP32", "TRITONSERVER_DataType": "TRITONSERVER_TYPE_FP32"}
ONES = {"bucket_count", "config_version", "dim_count", "model_version", "rank", "version"}


def _pointer(parameter: str, name: str) -> str:
    if parameter == "char*":
        return '"{}"' if "json" in name or name == "text" else '"m"'
    if name in ("name_mapping", "parameters", "labels"):
        return "NULL"
    return f"(void*)scratch_{name}"


def wrong(function: Function, parameter: str, name: str) -> list[tuple[str, bool]]:
    """Arguments that are not, each with whether the function must refuse it."""
    handle = kind_of(parameter)
    if handle is not None:
        return [
            ("NULL", not _may_be_null(function, name)),
            *((f"make_{other}()", True) for other in _others(handle)),
            (f"deleted_{handle}()", True),
            ("(void*)0x1235", True),
        ]
    if parameter.endswith(("*", "Fn_t", "_callback")):
        return [("NULL", not _may_be_null(function, name))]
    if name in SIZES_OF_OTHERS or name == "milliseconds":
        return []
    if name in ("mapping_count", "parameter_count", "label_count"):
        return [("(uint32_t)-1", True)]
    return [("-1", False)]


def _may_be_null(function: Function, name: str) -> bool:
    return name in ALWAYS_MAY_BE_NULL or (function.name, name) in MAY_BE_NULL


def _others(handle: str) -> list[str]:
    """Handles of other types. An agent needs a library, and a repoagent_agent lives only while an agent is called."""
    if handle in OWN_HANDLES:
        return sorted((HANDLES | OWN_HANDLES) - {handle, "TRITONREPOAGENT_Agent", "repoagent_agent"})
    return sorted(HANDLES - {handle})


def calls(function: Function) -> list[tuple[list[str], str]]:
    """Arguments of every call, each with what it must do: "accept", "refuse", or "" for either."""
    right = [good(function, *parameter) for parameter in function.parameters]
    made = [(right, "")]
    for index, parameter in enumerate(function.parameters):
        for argument, refused in wrong(function, *parameter):
            made.append(([*right[:index], argument, *right[index + 1 :]], "refuse" if refused else ""))
    return made


def program(found: list[Function]) -> str:
    """The source of the walk."""
    header = "walk_own.h" if found[0].result.startswith("repoagent_") else "walk.h"
    walks = [_walk(function) for function in found]
    scratches = sorted({name for walk in walks for name in re.findall(r"scratch_\w+", walk)})
    lines = [f'#include "{header}"', *(f"static char {name}[90000];" for name in scratches), *walks]
    lines += ["int main(void)", "{", "  begin();", *(f"  walk_{function.name}();" for function in found), "  end();"]
    return "\n".join([*lines, '  printf("calls: %d\\n", calls);', "  return 0;", "}"]) + "\n"


def _walk(function: Function) -> str:
    """A function of C with every call of one function."""
    blocks = [line for arguments, expected in calls(function) for line in _call(function, arguments, expected)]
    return "\n".join([f"static void walk_{function.name}(void)", "{", *blocks, "}"])


def _call(function: Function, arguments: list[str], expected: str) -> list[str]:
    scratches = {argument.removeprefix("(void*)") for argument in arguments if argument.startswith("(void*)scratch_")}
    declared = [f"    memset({name}, 0, sizeof({name}));" for name in sorted(scratches)]
    handles = [
        (f"handle_{index}", argument)
        for index, argument in enumerate(arguments)
        if argument.startswith(("make_", "deleted_"))
    ]
    declared += [f"    void* {name} = {argument};" for name, argument in handles]
    names = {argument: name for name, argument in handles}
    passed = ", ".join(names.get(argument, argument) for argument in arguments)
    text = f"{function.name}({', '.join(arguments)})".replace('"', "'")
    call = f"{function.name}({passed})"
    body = ["  {", *declared, "    ++calls;"]
    if function.result == "repoagent_error":
        body.append(f'    judge({call}, {int(expected == "refuse")}, "{text}");')
    elif function.result in OWN_HANDLES:
        body.append(f"    remove_any({call});")
    elif function.result == "TRITONSERVER_Error*" and not function.name.startswith("TRITONSERVER_ErrorNew"):
        body.append(f'    check({call}, {int(expected == "refuse")}, "{text}");')
    elif function.result == "void":
        body.append(f"    {call};")
    elif function.result in ("TRITONSERVER_Error*", "TRITONSERVER_Parameter*"):
        body.append(f"    remove_any({call});")
    else:
        body.append(f'    returns((uintptr_t){call}, {int(expected == "refuse")}, "{text}");')
    outs = [
        argument.removeprefix("(void*)")
        for argument, (parameter, _) in zip(arguments, function.parameters, strict=True)
        if argument.startswith("(void*)scratch_")
        and (parameter.endswith("**") or parameter[:-1] in OWN_HANDLES)
        and kind_of(parameter[:-1])
    ]
    # What was made goes first: it may be a metric of the family that was given.
    body += [f"    remove_any(*(void**){name});" for name in outs]
    body += [f"    remove_any({name});" for name, _ in handles]
    return [*body, f'    left("{text}");', "  }"]
