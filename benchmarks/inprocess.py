"""What the serving core and the in-process Server API add to ONNX Runtime: the same models in one process.

    python benchmarks/inprocess.py                      # exit status 1 if a limit is missed
    python benchmarks/inprocess.py --rounds 40000

``core`` is ``ServingCore.infer``: look-up, checks, the gate, statistics. ``infer`` is
``next(model.infer(inputs=...))``, with Triton's request, response and tensor objects; ``run`` is ``model.run(...)``,
arrays in and arrays out. Each is measured against a bare ``session.run`` with the same session
options, taking turns in blocks, so that a slow moment of the machine hits all: the median in microseconds on one
thread, and calls per second of eight threads together, the best of several turns.

``async`` is ``async for`` over ``model.async_infer(...)`` in eight tasks of one event loop, which executes a quick
model itself and has the others executed by threads.

``tiny`` adds two vectors: all that is measured is Python, and on eight threads that share one interpreter lock no
code that does anything at all keeps 90 % of a loop that does nothing else. It has the limit on latency. ``dense``
computes for a fraction of a millisecond, without the lock. It has the limit on throughput.
"""

import asyncio
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnxruntime
from measures import THREADS, Call, call_medians, call_rate, options_of
from onnx import helper, numpy_helper
from onnx_models import onnx_model, write_onnx

from repoagent.config import ModelConfig
from repoagent.server import Model, Server
from repoagent.serving.backends.onnxruntime.backend import session_options
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Array, Tensor

LIMIT_US = 15.0
LIMIT_KEPT = 0.9
SECONDS = 0.5
TURNS = 6
WIDTH = 512
BATCH = {"tiny": 1, "dense": 32}
CONFIG = f"max_batch_size: 32 instance_group {{ kind: KIND_CPU count: {THREADS} }}"


def main() -> int:
    rounds = options_of(__doc__, rounds=(20_000, "how often each call is measured")).rounds
    with tempfile.TemporaryDirectory() as scratch:
        models = write_models(Path(scratch) / "models")
        print(f"{'model':>6} {'call':>6} {'us':>8} {'added':>7} {'calls/s x8':>11} {'kept':>6}")
        with Server(model_repository=str(Path(scratch) / "models"), workspace_directory=scratch + "/work") as server:
            results = {name: compare(server, name, model, rounds) for name, model in models.items()}
    added, kept = results["tiny"][0], results["dense"][1]
    most = max(added["core"], added["infer"])
    print(f"core and infer: add {most:.1f} us, p50 (limit {LIMIT_US:g}); infer keeps {kept:.0%} x{THREADS} (limit 90%)")
    return 0 if most <= LIMIT_US and kept >= LIMIT_KEPT else 1


def write_models(root: Path) -> dict[str, bytes]:
    """The models, by name, also in a repository; each may run on as many threads as there are."""
    matrix = numpy_helper.from_array(np.eye(WIDTH, dtype=np.float32), "w")
    models = {
        "tiny": onnx_model([helper.make_node("Add", ["x", "x"], ["y"])], [], WIDTH, WIDTH),
        "dense": onnx_model(
            [helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("MatMul", ["h", "w"], ["y"])],
            [matrix],
            WIDTH,
            WIDTH,
        ),
    }
    for name, content in models.items():
        write_onnx(root, name, content, CONFIG)
    return models


def variants(server: Server, name: str, content: bytes) -> dict[str, Call]:
    """The calls to compare, the bare one first."""
    session = onnxruntime.InferenceSession(
        content, session_options(ModelConfig(), THREADS), providers=["CPUExecutionProvider"]
    )
    model, core = server.model(name), server._core
    assert core is not None
    inputs = {"x": np.ones((BATCH[name], WIDTH), np.float32)}
    return {
        "bare": lambda: session.run(["y"], inputs),
        "core": lambda: core.infer(InferRequest(Asked(name, {"x": Tensor.of(inputs["x"])}))),
        "infer": lambda: next(model.infer(inputs=inputs)),
        "run": lambda: model.run(inputs),
    }


async def async_rate(model: Model, inputs: dict[str, Array], seconds: float) -> float:
    """Calls per second of as many tasks as there are threads elsewhere, together."""
    stop, count = time.monotonic() + seconds, 0

    async def work() -> None:
        nonlocal count
        while time.monotonic() < stop:
            async for _ in model.async_infer(inputs=inputs):
                count += 1

    await asyncio.gather(*(work() for _ in range(THREADS)))
    return count / seconds


def compare(server: Server, model: str, content: bytes, rounds: int) -> tuple[dict[str, float], float]:
    """Microseconds that each way adds, and the part of the throughput that ``infer`` keeps."""
    calls = variants(server, model, content)
    inputs = {"x": np.ones((BATCH[model], WIDTH), np.float32)}
    times = call_medians(calls, rounds)
    rates = dict.fromkeys([*calls, "async"], 0.0)
    for _ in range(TURNS):
        for name, call in calls.items():
            rates[name] = max(rates[name], call_rate(call, SECONDS))
        rates["async"] = max(rates["async"], asyncio.run(async_rate(server.model(model), inputs, SECONDS)))
    for name in rates:
        kept = rates[name] / rates["bare"]
        latency = f"{times[name]:8.1f} {times[name] - times['bare']:7.1f}" if name in times else " " * 16
        print(f"{model:>6} {name:>6} {latency} {rates[name]:11.0f} {kept:6.0%}")
    return {name: each - times["bare"] for name, each in times.items()}, rates["infer"] / rates["bare"]


if __name__ == "__main__":
    sys.exit(main())
