"""What the backend ``tensorrt`` adds to a bare ``session.run`` of ONNX Runtime, for a small model over the stand-in.

Both compute the same model with the same runtime, in turns; the difference is the backend and the stand-in. A GPU has
costs of its own, which this does not show. CPU time is that of the calling thread: it hardly depends on what else the
machine does.
"""

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import numpy as np
import onnxruntime
from measures import in_turns, options_of, table
from onnx import TensorProto, helper
from onnx_models import onnx_model

from repoagent.config import normalize, read_text
from repoagent.engines.protocol import Profile, ShapeRange
from repoagent.serving.backends.tensorrt.backend import TensorRtBackend
from repoagent.serving.instances.backend import InstanceSpec
from repoagent.serving.requests.tensor import Tensor
from repoagent.storage.files.files import MemoryFiles
from tests.engines.standin import StandInPlan, StandInPlatform

WIDTH = 64


def _model() -> bytes:
    weights = np.random.default_rng(1).standard_normal((WIDTH, 10)).astype(np.float32)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["a"]), helper.make_node("Relu", ["a"], ["y"])]
    constants = [helper.make_tensor("w", TensorProto.FLOAT, weights.shape, weights.reshape(-1).tolist())]
    return onnx_model(nodes, constants, WIDTH, 10)


def _runner(model: bytes, text: str) -> Callable[[], object]:
    plan = StandInPlan(model, [Profile({"x": ShapeRange((1, WIDTH), (8, WIDTH), (8, WIDTH))})]).to_bytes()
    backend = TensorRtBackend(platform=cast(Any, StandInPlatform()))
    files = MemoryFiles({"1/model.plan": plan}, lambda: (_ for _ in ()).throw(AssertionError))
    config = normalize(read_text('backend: "tensorrt" ' + text), model_name="m", gpus=None)
    backend.auto_complete(config, files, 1)
    config = normalize(config, gpus=backend.gpus())
    runner = backend.load(config, files, 1).create_instance(InstanceSpec("m_0", "GPU"))
    inputs = {"x": Tensor.of(np.ones((1, WIDTH), np.float32))}
    return lambda: runner.run(inputs, ())


def _bare(model: bytes) -> Callable[[], object]:
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    array = np.ones((1, WIDTH), np.float32)
    return lambda: session.run(["y"], {"x": array})


def _microseconds(call: Callable[[], object], calls: int) -> tuple[float, float]:
    """The median of the time that a call takes, and the mean of the CPU time."""
    times = []
    cpu = time.thread_time_ns()
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        times.append(time.perf_counter_ns() - begin)
    return statistics.median(times) / 1000, (time.thread_time_ns() - cpu) / calls / 1000


def main() -> None:
    """Print the medians of several rounds."""
    options = options_of(__doc__, calls=2000, rounds=7)
    model = _model()
    calls = {
        "session.run": _bare(model),
        "tensorrt, one run at a time": _runner(model, "max_batch_size: 1"),
        "tensorrt, two runs on their way": _runner(model, "max_batch_size: 8 dynamic_batching { }"),
        "tensorrt, CUDA graphs": _runner(model, "max_batch_size: 1 optimization { cuda { graphs: true } }"),
    }
    takes = {name: partial(_microseconds, call, options.calls) for name, call in calls.items()}
    best = {name: [*map(min, zip(*found, strict=True))] for name, found in in_turns(takes, options.rounds).items()}
    bare_wall, bare_cpu = best["session.run"]
    rows = [
        (name, f"{wall:.1f}", f"{wall - bare_wall:+.1f}", f"{cpu:.1f}", f"{cpu - bare_cpu:+.1f}")
        for name, (wall, cpu) in best.items()
    ]
    print(table(("microseconds a call", "time", "more", "CPU", "more"), rows))


if __name__ == "__main__":
    main()
