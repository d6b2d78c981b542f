"""What the serving core adds to ONNX Runtime: the same models, in one process, with and without it.

    python benchmarks/core_overhead.py                  # exit status 1 if the core adds more than the limit
    python benchmarks/core_overhead.py --rounds 20000

One thread: ``ServingCore.infer`` against a bare ``session.run`` with the same session options, taking turns in blocks,
so that a slow moment of the machine hits both; the median of all calls counts, in microseconds. Eight threads: requests
per second of both. Everything that a request goes through is in it: look-up, checks, the gate, statistics.
"""

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnxruntime
from measures import Call, call_medians, call_rate, options_of
from onnx import helper, numpy_helper
from onnx_models import onnx_model, write_onnx

from repoagent.config import ModelConfig
from repoagent.serving.backends.onnxruntime.options import session_options
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Array, Tensor

LIMIT_US = 15.0
SECONDS = 1.0


def add_model() -> bytes:
    """y = x + 1, FP32[N,16]: as little computing as there can be."""
    nodes = [helper.make_node("Add", ["x", "one"], ["y"])]
    return onnx_model(nodes, [numpy_helper.from_array(np.ones(16, np.float32), "one")], 16, 16)


def mlp_model() -> bytes:
    """Two layers, FP32[N,64] to FP32[N,10]."""
    random = np.random.default_rng(0)
    weights = {"w": (64, 128), "b": (128,), "v": (128, 10), "c": (10,)}
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "v", "c"], ["y"]),
    ]
    constants = [numpy_helper.from_array(random.random(s, np.float32), name) for name, s in weights.items()]
    return onnx_model(nodes, constants, 64, 10)


MODELS = {"add": (add_model, 16), "mlp": (mlp_model, 64)}


def main() -> int:
    rounds = options_of(__doc__, rounds=(10_000, "how often each call is measured")).rounds
    added = []
    print(f"{'model':>6} {'bare us':>9} {'core us':>9} {'added us':>9} {'bare/s x8':>10} {'core/s x8':>10} {'kept':>6}")
    with tempfile.TemporaryDirectory() as scratch, served(Path(scratch)) as core:
        for name, (make, width) in MODELS.items():
            bare, ours = calls(core, name, make(), np.ones((1, width), np.float32))
            times = call_medians({"bare": bare, "ours": ours}, rounds)
            bare_rate, ours_rate = call_rate(bare, SECONDS), call_rate(ours, SECONDS)
            added.append(times["ours"] - times["bare"])
            print(
                f"{name:>6} {times['bare']:9.1f} {times['ours']:9.1f} {added[-1]:9.1f} "
                f"{bare_rate:10.0f} {ours_rate:10.0f} {ours_rate / bare_rate:6.0%}"
            )
    print(f"core overhead: {max(added):.1f} us at most, p50 (limit: {LIMIT_US:g} us)")
    return 0 if max(added) <= LIMIT_US else 1


@contextmanager
def served(scratch: Path) -> Iterator[ServingCore]:
    """A core with all models loaded."""
    for name, (make, _) in MODELS.items():
        write_onnx(scratch / "models", name, make(), None)
    options = CoreOptions(
        repositories=(str(scratch / "models"),),
        control_mode=ControlMode.NONE,
        workspace_directory=scratch / "workspace",
        cache_directory=scratch / "cache",
    )
    with ServingCore(options) as core:
        yield core


def calls(core: ServingCore, name: str, content: bytes, values: Array) -> tuple[Call, Call]:
    """The two things to compare."""
    options = session_options(ModelConfig(), 1)
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])

    def bare() -> object:
        return session.run(["y"], {"x": values})

    def ours() -> object:
        return core.infer(InferRequest(Asked(name, {"x": Tensor.of(values)})))

    return bare, ours


if __name__ == "__main__":
    sys.exit(main())
