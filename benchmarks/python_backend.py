"""A Python model in the server's process and in processes of its own: what a request costs, and what two cores give.

    python benchmarks/python_backend.py [--seconds 2] [--loads 200]

First come the median loads and unloads of a trivial model, in the server's process also beside 200 others. For
comparison: Triton 2.51 takes 1,318 ms to load such a model and 1,150 ms to unload it (measured over HTTP on a 2-core
machine of the same kind; it starts and ends a process for it). An unload here returns when the model is gone.

The next table is for one caller: requests per second and the median latency of a model that returns its input, and
what a process of its own adds to that. The last is for four callers of a model of pure Python code that computes for
some milliseconds: instances in the server's process take turns on Python's lock, processes do not. The variants take
turns in short rounds, so that what else runs on the machine touches all of them alike.

The exit status is 1 if a load or an unload in process takes 10 ms, or if two processes do not beat one by half.
"""

import os
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

import numpy as np
from measures import Call, call_rate, in_turns, medians, options_of
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
LIMIT_MS = 10.0
TRITON_MS = {"load": 1318.0, "unload": 1150.0}
OTHERS = [f"other-{number}" for number in range(200)]


def main() -> int:
    given = options_of(__doc__, seconds=(2.0, "how long each variant is measured"), loads=200)
    seconds = given.seconds
    print(f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as scratch:
        for execution in ("in-process", "process"):
            write_model(Path(scratch, f"identity-{execution}"), IDENTITY, execution, 1)
        for execution, count in BUSY_MODELS:
            write_model(Path(scratch, f"busy-{execution}-{count}"), BUSY, execution, count)
        for name in OTHERS:
            write_model(Path(scratch, name), IDENTITY, "in-process", 1)
        options = CoreOptions(repositories=(scratch,), control_mode=ControlMode.EXPLICIT, repoagent_directory=None)
        with ServingCore(options) as core:
            quick = measure_loads(core, given.loads)
            measure_requests(core, seconds)
            return 0 if measure_scaling(core, seconds) and quick else 1


def write_model(directory: Path, code: str, execution: str, count: int) -> None:
    (directory / "1").mkdir(parents=True)
    (directory / "1" / "model.py").write_text(code)
    (directory / "config.pbtxt").write_text(CONFIG.format(execution=EXECUTION % execution, count=count))


def measure_loads(core: ServingCore, loads: int) -> bool:
    """Whether those in process take less than the limit; a load of a process has a second one for the configuration."""
    quick = loaded(core, "in-process", loads)
    loaded(core, "process", ROUNDS)
    for name in OTHERS:
        core.load(name)
    quick &= loaded(core, "in-process", loads, f", beside {len(OTHERS)} others")
    for name in OTHERS:
        core.unload(name)
    return quick


def loaded(core: ServingCore, execution: str, loads: int, beside: str = "") -> bool:
    """Print the median milliseconds of a load and an unload; whether both are below the limit."""
    works: dict[str, Call] = {
        "load": partial(core.load, f"identity-{execution}"),
        "unload": partial(core.unload, f"identity-{execution}"),
    }
    found = medians(in_turns({name: partial(seconds_of, work) for name, work in works.items()}, loads))
    times = {name: value * 1e3 for name, value in found.items()}
    cells = (f"{name} {time:.2f} ms (1/{TRITON_MS[name] / time:.0f} of Triton's)" for name, time in times.items())
    print(f"{execution}{beside}: {', '.join(cells)}")
    return max(times.values()) < LIMIT_MS


def measure_requests(core: ServingCore, seconds: float) -> None:
    models = [f"identity-{execution}" for execution in ("in-process", "process")]
    for model in models:
        core.load(model)
    for label, size in SIZES.items():
        latencies: dict[str, list[float]] = {model: [] for model in models}
        for _ in range(ROUNDS):
            for model in models:
                latencies[model] += one_caller(core, model, size, seconds / ROUNDS)
        halves = {model: value * 1e6 for model, value in medians(latencies).items()}
        for model, values in latencies.items():
            added = halves[model] - halves[models[0]]
            rate = len(values) / sum(values)
            print(f"{model:20} {label:>7}  {rate:8.0f}/s  p50 {halves[model]:7.1f} us  {added:+7.1f}")
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
