"""A first opening of an ONNX file in a process that can be ended: what that takes has no bound in ONNX Runtime.

Most files do not need one: see :mod:`repoagent.onnx_files.shape_cost`.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Final

from repoagent.errors import CancelledError, InvalidArgumentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.onnx_files.constant_folding import DISABLED_OPTIMIZERS, LARGEST_FOLDED, bound_folding
from repoagent.onnx_files.external_files import Buffer
from repoagent.onnx_files.graph import read_graph
from repoagent.onnx_files.opening_child import OVER
from repoagent.onnx_files.shape_cost import is_plain
from repoagent.programs import start_python

_PROGRAM: Final = Path(__file__).with_name("opening_child.py")
_LOOK_SECONDS: Final = 0.05
_OWN: Final = 4
"""How many times the size of its files a model may take in memory, beside what the limit allows."""
_SETTINGS: Final = (
    LARGEST_FOLDED,
    DISABLED_OPTIMIZERS,
    "session.model_external_initializers_file_folder_path",
)
_OPTIONS: Final = ("enable_cpu_mem_arena", "enable_mem_pattern", "execution_mode", "graph_optimization_level")
_bounds: Final[ContextVar[tuple[Limits, Callable[[], bool]]]] = ContextVar(
    "repoagent_opening", default=(DEFAULT_LIMITS, lambda: False)
)


@contextmanager
def opening_within(limits: Limits, cancelled: Callable[[], bool]) -> Iterator[None]:
    """Inside, :func:`try_opening` holds to ``limits``, and ends once ``cancelled`` is true."""
    token = _bounds.set((limits, cancelled))
    try:
        yield
    finally:
        _bounds.reset(token)


def try_opening(
    model: Buffer, options: Any, name: str, *, files: Mapping[str, Buffer] | None = None, size: int = 0
) -> None:
    """Open a model in another process, unless its graph states that this is cheap.

    Only on Linux, where files in memory and limits of memory can be had; elsewhere this does nothing.

    A model that ONNX Runtime refuses there is refused once more when it is opened next.

    Args:
        model: The contents of its file.
        options: The ``SessionOptions`` that it will be opened with; what may be folded is set in it, see
            ``bound_folding``. The process opens with the same level of optimisation, folders and bounds.
        name: What to call the file in a message.
        files: Those beside it that are in memory.
        size: Bytes of all files of the model.

    Raises:
        InvalidArgumentError: it takes more than the limits allow, or ends the process, or has too many functions.
        UnavailableError: the process cannot be started.
        CancelledError: the load was cancelled.
    """
    graph = read_graph(model)
    bound_folding(options, graph, name)
    limits, cancelled = _bounds.get()
    if sys.platform != "linux" or not limits.open_seconds or is_plain(graph):
        return
    contents = {"": model, **(files or {})}
    order = {
        "contents": {one: len(content) for one, content in contents.items()},
        "options": {one: int(getattr(options, one)) for one in _OPTIONS},
        "settings": {one: options.get_session_config_entry(one) for one in _SETTINGS if _has(options, one)},
        "bytes": limits.open_bytes + _OWN * max(size, sum(map(len, contents.values()))),
    }
    status = _run([json.dumps(order).encode(), b"\n", *contents.values()], limits, cancelled, name)
    if status == OVER:
        raise InvalidArgumentError(
            f"{name} takes more than {limits.open_bytes} bytes of memory to open, beside its weights: the shapes that "
            "it computes grow from node to node, or many nodes copy a weight; simplify the graph, or raise "
            f"{Limits.flag('open_bytes')}"
        )
    if status < 0:
        raise InvalidArgumentError(f"{name} ends the process that opens it, with signal {-status}")
    if status:
        raise UnavailableError(f"{name} cannot be tried: the process that opens it ended with status {status}")


def _has(options: Any, name: str) -> bool:
    try:
        options.get_session_config_entry(name)
    except RuntimeError:
        return False
    return True


def _run(sent: Sequence[Buffer], limits: Limits, cancelled: Callable[[], bool], name: str) -> int:
    """The exit status of the process, below 0 for a signal."""
    try:
        # A file in memory, not a pipe: it is there at once, however large, and touches no disk.
        with os.fdopen(os.memfd_create("repoagent-opening", os.MFD_CLOEXEC), "wb") as file:
            file.writelines(sent)
            file.flush()
            file.seek(0)
            process = start_python(_PROGRAM, file, f"the process that tries {name}")
    except OSError as error:
        raise UnavailableError(f"{name} cannot be tried: {error.strerror}") from error
    with process:
        try:
            return _watched(process, limits, cancelled, name)
        finally:
            process.kill()


def _watched(process: "subprocess.Popen[bytes]", limits: Limits, cancelled: Callable[[], bool], name: str) -> int:
    end = time.monotonic() + limits.open_seconds
    while True:
        try:
            return process.wait(_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if cancelled():
                raise CancelledError("the load was cancelled while the model was being opened") from None
            if time.monotonic() > end:
                raise InvalidArgumentError(
                    f"{name} takes more than {limits.open_seconds} s to open; simplify the graph, or raise "
                    f"{Limits.flag('open_seconds')}"
                ) from None
