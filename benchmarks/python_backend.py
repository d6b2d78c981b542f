"""A Python model in the server's process and in processes of its own: what a request costs, and what two cores give.

    python benchmarks/python_backend.py [--seconds 2]    # exit status 1 if two processes do not beat one by half

The first table is for one caller: requests per second and the median latency of a model that returns its input, and
what a process of its own adds to that. The second is for four callers of a model of pure Python code that computes for
some milliseconds: instances in the server's process take turns on Python's lock, processes do not. The variants take
turns in short rounds, so that what else runs on the machine touches all of them alike.
"""

import os
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from measures import call_rate, in_turns, medians, options_of
from measures import seconds as seconds_of

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""
# About 5 ms of bytecode.
BUSY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        total = 0
        for number in range(100_000):
            total += number * number
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", r.inputs()[0].as_numpy())]) for r in requests]
"""
CONFIG = """
backend: "python" instance_group {{ count: {count} }} {execution}
input {{ name: "x" data_type: TYPE_FP32 dims: [-1] }} output {{ name: "y" data_type: TYPE_FP32 dims: [-1] }}
"""
EXECUTION = 'parameters { key: "EXECUTION" value { string_value: "%s" } }'
SIZES = {"64 B": 16, "16 KiB": 1 << 12, "1 MiB": 1 << 18}
BUSY_MODELS = (("in-process", 1), ("in-process", 2), ("process", 1), ("process", 2))
ROUNDS = 5
CALLERS = 4


def main() -> int:
    seconds = options_of(__doc__, seconds=(2.0, "how long each variant is measured")).seconds
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as scratch:
        for execution in ("in-process", "process"):
            write_model(Path(scratch, f"identity-{execution}"), IDENTITY, execution, 1)
        for execution, count in BUSY_MODELS:
            write_model(Path(scratch, f"busy-{execution}-{count}"), BUSY, execution, count)
        options = CoreOptions(repositories=(scratch,), control_mode=ControlMode.EXPLICIT, repoagent_directory=None)
        with ServingCore(options) as core:
            measure_loads(core)
            measure_requests(core, seconds)
            return 0 if measure_scaling(core, seconds) else 1


def write_model(directory: Path, code: str, execution: str | None, count: int) -> None:
    """``execution`` is for the model's configuration; None leaves it to the server."""
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(code)
    (directory / "config.pbtxt").write_text(
        CONFIG.format(execution=EXECUTION % execution if execution else "", count=count)
    )


def measure_loads(core: ServingCore) -> None:
    """Median milliseconds of a load and an unload; a load of a process has a second one for the configuration."""
    for execution in ("in-process", "process"):
        loads, unloads = [], []
        for _ in range(ROUNDS):
            loads.append(seconds_of(partial(core.load, f"identity-{execution}")) * 1e3)
            unloads.append(seconds_of(partial(core.unload, f"identity-{execution}")) * 1e3)
        print(f"{execution:10}  load {statistics.median(loads):6.1f} ms, unload {statistics.median(unloads):6.1f} ms")


def measure_requests(core: ServingCore, seconds: float) -> None:
    models = [f"identity-{execution}" for execution in ("in-process", "process")]
    for model in models:
        core.load(model)
    for label, size in SIZES.items():
        latencies: dict[str, list[float]] = {model: [] for model in models}
        for _ in range(ROUNDS):
            for model in models:
                latencies[model] += one_caller(core, model, size, seconds / ROUNDS)
        medians = {model: statistics.median(values) * 1e6 for model, values in latencies.items()}
        for model, values in latencies.items():
            added = medians[model] - medians[models[0]]
            rate = len(values) / sum(values)
            print(f"{model:20} {label:>7}  {rate:8.0f}/s  p50 {medians[model]:7.1f} us  {added:+7.1f}")
    for model in models:
        core.unload(model)


def one_caller(core: ServingCore, model: str, size: int, seconds: float) -> list[float]:
    """The latency of each request, in seconds."""
    given = np.arange(size, dtype=np.float32)
    latencies = []
    end = time.perf_counter() + seconds
    while (start := time.perf_counter()) < end:
        core.infer(InferRequest(Asked(model, {"x": Tensor.of(given)})))
        latencies.append(time.perf_counter() - start)
    return latencies


def measure_scaling(core: ServingCore, seconds: float) -> bool:
    models = [f"busy-{execution}-{count}" for execution, count in BUSY_MODELS]
    for model in models:
        core.load(model)
    takes = {model: partial(many_callers, core, model, seconds / ROUNDS) for model in models}
    best = medians(in_turns(takes, ROUNDS))
    for (execution, count), model in zip(BUSY_MODELS, models, strict=True):
        times = ratio(best, execution, model)
        print(f"busy, {execution:10} {count} instance(s)  {best[model]:6.0f}/s  ({times:.2f} of one)")
    return ratio(best, "process", "busy-process-2") >= 1.5


def ratio(rates: dict[str, float], execution: str, model: str) -> float:
    return rates[model] / rates[f"busy-{execution}-1"]


def many_callers(core: ServingCore, model: str, seconds: float) -> float:
    """Requests per second of several threads that ask as fast as they are answered."""
    given = np.zeros(16, np.float32)
    return call_rate(lambda: core.infer(InferRequest(Asked(model, {"x": Tensor.of(given)}))), seconds, CALLERS)


if __name__ == "__main__":
    sys.exit(main())
