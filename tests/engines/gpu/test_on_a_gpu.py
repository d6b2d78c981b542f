"""What only a GPU can show: plans that were built here, run here, give the numbers of ONNX Runtime.

None of this has run yet (docs/gpu.md). Tests of the stand-in show the logic; these show CUDA and TensorRT.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from repoagent.config import normalize, read_text
from repoagent.engines.protocol import EngineOptions, Platform
from repoagent.errors import InternalError, InvalidArgumentError, UnsupportedError
from repoagent.serving.backends.tensorrt import TensorRtBackend
from repoagent.serving.backends.tensorrt.runner import TensorRtRunner
from repoagent.serving.requests.tensor import Tensor
from tests.engines.gpu.need import need_gpu
from tests.engines.models import matmul, nonzero
from tests.serving.backends.tensorrt.kit import GPU, files_of, through_onnxruntime

pytestmark = pytest.mark.gpu

BATCHING = "max_batch_size: 8 dynamic_batching { }"
CLOSE = 1e-3


@pytest.fixture(scope="module")
def platform() -> Platform:
    need_gpu()
    from repoagent.engines.cuda.finding import find_platform

    return find_platform()


def build(model: bytes, *ranges: tuple[int, int], width: int = 4) -> bytes:
    """A plan for this GPU with one profile per range of rows; TF32 off, so that numbers compare."""
    from repoagent.engines.bindings import trt

    logger = trt.Logger(trt.Logger.ERROR)
    builder = trt.Builder(logger)
    network = builder.create_network(0)
    assert trt.OnnxParser(network, logger).parse(model)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    for least, most in ranges:
        profile = builder.create_optimization_profile()
        profile.set_shape("x", (least, width), (most, width), (most, width))
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    return bytes(plan)


def load(platform: Platform, content: bytes, text: str = "") -> Any:
    backend, files = TensorRtBackend(platform=platform), files_of(content)
    config = normalize(read_text('backend: "tensorrt" ' + text), model_name="m", gpus=None)
    backend.auto_complete(config, files, 1)
    return backend.load(normalize(config, gpus=backend.gpus()), files, 1)


@pytest.fixture
def open_runner(platform: Platform) -> Iterator[Any]:
    opened: list[Any] = []

    def make(content: bytes, text: str = "") -> TensorRtRunner:
        model = load(platform, content, text)
        runner: TensorRtRunner = model.create_instance(GPU)
        opened.extend((runner, model))
        return runner

    yield make
    for one in opened:
        one.close()


def _floats(rows: int, width: int = 4) -> Any:
    return np.random.default_rng(rows).standard_normal((rows, width)).astype(np.float32)


def _same(ours: Any, theirs: Any) -> None:
    for name, tensor in theirs.items():
        np.testing.assert_allclose(ours[name].array, tensor.array, rtol=CLOSE, atol=CLOSE)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("max_batch_size: 1", (1, 1)),
        (BATCHING, (1, 8, 3, 3, 1)),
        (BATCHING + " optimization { cuda { graphs: true } }", (2, 2, 2, 3, 3, 3, 2)),
    ],
)
def test_parity_with_onnxruntime(open_runner: Any, text: str, sizes: Sequence[int]) -> None:
    one, theirs = open_runner(build(matmul(), (1, 2), (3, 8)), text), through_onnxruntime(matmul())
    for size in sizes:
        inputs = {"x": Tensor.of(_floats(size))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))


def test_two_runs_on_their_way(open_runner: Any) -> None:
    one, theirs = open_runner(build(matmul(), (1, 8)), BATCHING), through_onnxruntime(matmul())
    begun = one.begin({"x": [_floats(1)]}, ())
    for size in (2, 3, 8, 5):
        following = one.begin({"x": [_floats(size)]}, ())
        one.finish(begun)
        begun = following
    _same(one.finish(begun), theirs.run({"x": Tensor.of(_floats(5))}, ()))


def test_an_output_whose_shape_only_the_run_tells(open_runner: Any) -> None:
    try:
        content = build(nonzero(), (1, 8))
    except AssertionError:
        pytest.skip("this TensorRT cannot take NonZero from ONNX")
    one, theirs = open_runner(content), through_onnxruntime(nonzero())
    for values in ([[0, 1, 0, 2]], [[0, 0, 0, 0]], [[1, 1, 1, 1]] * 8):
        inputs = {"x": Tensor.of(np.array(values, np.float32))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))


@pytest.mark.parametrize("damage", ["garbage", "cut off", "flipped"])
def test_damaged_plans_are_refused(platform: Platform, damage: str) -> None:
    plan = build(matmul(), (1, 8))
    content = {"garbage": b"garbage" * 20, "cut off": plan[:-9], "flipped": b"\xff" * 100 + plan[100:]}[damage]

    def open_it() -> None:
        platform.check_plan(content, 0)
        platform.open(content, EngineOptions())

    with pytest.raises((InvalidArgumentError, UnsupportedError, InternalError)):
        open_it()


def test_memory_is_given_back(platform: Platform) -> None:
    from repoagent.engines.cuda.calls import checked, runtime

    content = build(matmul(1024), (1, 8), width=1024)

    def once() -> int:
        model = load(platform, content, BATCHING)
        runner = model.create_instance(GPU)
        runner.run({"x": Tensor.of(_floats(8, 1024))}, ())
        runner.close()
        model.close()
        free: int = runtime.cudaMemGetInfo()[1]
        return free

    before = once()
    assert checked(runtime.cudaDeviceSynchronize(), "wait") is None
    after = [once() for _ in range(5)]
    assert before - after[-1] < 1 << 24
