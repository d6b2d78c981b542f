"""What runs in the probe's child: import, ask CUDA, make a runtime. It may be killed by the library at any step.

Each step that was taken is written at once, so that the parent knows what was going on when the child died. The child
ends without running destructors: that of a runtime without a driver is one of those that kill.
"""

import os
import sys
from typing import Any

from repoagent.engines.probe import Findings, Gpu
from repoagent.errors import RepoAgentError


def main(write: int) -> None:
    """Write the steps, then the findings as one line, to the file descriptor ``write``."""

    def step(what: str) -> None:
        os.write(write, f"step {what}\n".encode())

    step("importing TensorRT")
    try:
        from repoagent.engines.bindings import FLAVOUR, trt
    except RepoAgentError as error:
        _finish(write, Findings(problem=error.message))
        return
    flavour, version = FLAVOUR.value, str(trt.__version__)
    step("asking CUDA for GPUs")
    gpus, problem = _gpus()
    problem = problem or _too_old(trt, f"{FLAVOUR.title} {version}")
    if not problem:
        step(f"making a runtime of {FLAVOUR.title}")
        problem = _runtime_problem(trt)
    _finish(write, Findings(flavour, version, gpus, problem))


def _finish(write: int, findings: Findings) -> None:
    os.write(write, f"found {findings.to_json()}\n".encode())


def _gpus() -> tuple[tuple[Gpu, ...], str]:
    try:
        from cuda.bindings import runtime
    except ImportError as error:
        return (), f"cuda-bindings cannot be imported, with which GPUs are reached: {error}"
    status, count = runtime.cudaGetDeviceCount()
    if int(status) != 0:
        # 35 stands for "no driver" as well as for "driver too old".
        return (
            (),
            f"CUDA finds no usable driver ({status.name}): install NVIDIA's driver, or check that it is new enough",
        )
    if not count:
        return (), "CUDA lists no GPU: check CUDA_VISIBLE_DEVICES, and that the container was given GPUs"
    gpus = []
    for index in range(count):
        status, properties = runtime.cudaGetDeviceProperties(index)
        if int(status) != 0:
            return (), f"CUDA cannot describe GPU {index}: {status.name}"
        capability = (int(properties.major), int(properties.minor))
        name = properties.name.decode(errors="replace")
        gpus.append(Gpu(index, name, capability, int(properties.totalGlobalMem)))
    return tuple(gpus), ""


def _too_old(trt: Any, title: str) -> str:
    """Outputs in the memory of an input came with TensorRT 10.15, and are the newest that engines need."""
    if hasattr(getattr(trt, "ICudaEngine", None), "get_aliased_input_tensor"):
        return ""
    return f"{title} is too old: TensorRT 10.15 or newer is needed, or TensorRT for RTX 1.7"


def _runtime_problem(trt: Any) -> str:
    """Make a runtime; an error that is logged meanwhile counts, as the object may be there and still unusable."""
    errors: list[str] = []

    class Log(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, msg: str) -> None:
            if severity in (trt.ILogger.ERROR, trt.ILogger.INTERNAL_ERROR):
                errors.append(msg)

    log = Log()
    try:
        runtime = trt.Runtime(log)
    except Exception as error:  # "factory function returned nullptr" among them
        return f"TensorRT cannot make a runtime: {errors[0] if errors else error}"
    if errors:
        return f"TensorRT made a runtime, but logged: {errors[0]}"
    return "" if runtime is not None else "TensorRT made no runtime"


if __name__ == "__main__":
    main(int(sys.argv[1]))
    os._exit(0)
