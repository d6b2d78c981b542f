"""The program that opens one ONNX file and ends: ``python -P opening_child.py``. It imports nothing of this project.

Standard input has an order, which is one line of JSON, and then the contents that it names. Exit status: 0 if ONNX
Runtime came to an end with it, whatever that was, 3 if it took too much memory.
"""

import json
import resource
import sys
from typing import Any, Final

OVER: Final = 3
_OUT_OF_MEMORY: Final = ("bad_alloc", "allocate memory", "length_error")


def main() -> int:
    """Open what is ordered."""
    order = json.loads(sys.stdin.buffer.readline())
    contents = {name: sys.stdin.buffer.read(length) for name, length in order["contents"].items()}
    model = contents.pop("")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    for name, value in order["options"].items():
        setattr(options, name, type(getattr(options, name))(value))
    for name, value in order["settings"].items():
        options.add_session_config_entry(name, value)
    if contents:
        lengths = [len(content) for content in contents.values()]
        options.add_external_initializers_from_files_in_memory(list(contents), list(contents.values()), lengths)
    before, most = _resident(), order["bytes"]
    _limit(2 * most)
    try:
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except MemoryError:
        return OVER
    except Exception as error:  # The server opens it next, and reports what is wrong.
        if any(text in str(error) for text in _OUT_OF_MEMORY):
            return OVER
    # ONNX Runtime passes over an inference that lacks memory, and goes on: its use of memory shows it.
    return OVER if _resident() - before > most else 0


def _resident() -> int:
    """The most bytes that this program has had in memory. (``getrusage`` counts those of the server, which forked.)"""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM:")) * 1024


def _limit(more: int) -> None:
    """Let this process have ``more`` bytes than now."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with open("/proc/self/statm", encoding="ascii") as file:
        data: Any = int(file.read().split()[5]) * resource.getpagesize()
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    wanted = data + more
    resource.setrlimit(resource.RLIMIT_DATA, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


if __name__ == "__main__":
    sys.exit(main())
