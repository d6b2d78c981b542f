"""What only a GPU can show: plans that were built here, run here, give the numbers of ONNX Runtime.

None of this has run yet (docs/gpu.md). Tests of the stand-in show the logic; these show CUDA and TensorRT.
"""

import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm.builder import Form, Precision
from repoagent_llm.builder import build as make_folder
from repoagent_llm.converters.decoder import DecoderConverter
from repoagent_llm.runner.ort_forms import OrtStdRunner
from repoagent_llm.runner.protocol import DecodeRound, Logits, Segment
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.runner.tensorrt import TensorRtRunner as TensorRtDecoder

from examples.executor.synthetic import synthetic_checkpoint
from repoagent.api import ConversionJob, ConversionSource
from repoagent.config import normalize, read_text
from repoagent.engines.flavours import Flavour
from repoagent.engines.protocol import EngineOptions
from repoagent.errors import InternalError, InvalidArgumentError, UnsupportedError
from repoagent.serving.backends.onnxruntime.backend import OnnxRuntimeBackend
from repoagent.serving.backends.tensorrt.backend import TensorRtBackend
from repoagent.serving.backends.tensorrt.runner import TensorRtRunner
from repoagent.serving.instances.backend import InstanceSpec
from repoagent.serving.requests.tensor import Tensor
from tests.engines.gpu.need import cannot_run, need_gpu
from tests.engines.models import matmul, nonzero, reshape
from tests.engines.platforms import over_interfaces
from tests.serving.backends.tensorrt.kit import GPU, files_of, through_onnxruntime

pytestmark = pytest.mark.gpu

BATCHING = "max_batch_size: 8 dynamic_batching { }"
CLOSE = 1e-3


@pytest.fixture(scope="module")
def platform() -> Any:
    need_gpu()
    from repoagent.engines.cuda import find_platform

    found = find_platform()
    try:
        content = build(matmul(), (1, 8))
        found.check_plan(content, 0)
        found.open(content, EngineOptions()).close()
    except (UnsupportedError, InternalError) as error:
        # TensorRT for RTX builds for 7.5 to 8.9 and 12.x; what it answers elsewhere belongs into docs/gpu.md.
        cannot_run(f"{found.title} runs no plan here that was built here: {error}")
    return found


def build(model: bytes, *ranges: tuple[int, int], width: int = 4, values: Sequence[Sequence[int]] = ()) -> bytes:
    """A plan for this GPU with one profile per range of rows; TF32 off, so that numbers compare."""
    from repoagent.engines.bindings import trt
    from repoagent.engines.builder.network import logger  # A process has one logger, which must not go.

    builder = trt.Builder(logger)
    network = builder.create_network(1 << int(trt.NetworkDefinitionCreationFlag.STRONGLY_TYPED))
    assert trt.OnnxParser(network, logger).parse(model)
    config = builder.create_builder_config()
    config.clear_flag(trt.BuilderFlag.TF32)
    for least, most in ranges:
        profile = builder.create_optimization_profile()
        shapes = [(least, width), (most, width), (most, width)] if width else [(least,), (most,), (most,)]
        profile.set_shape("x", *shapes)
        if values:
            profile.set_shape_input("shape", *values)
        config.add_optimization_profile(profile)
    plan = builder.build_serialized_network(network, config)
    assert plan is not None
    return bytes(plan)


def load(platform: Any, content: bytes, text: str = "") -> Any:
    backend, files = TensorRtBackend(platform=platform), files_of(content)
    config = normalize(read_text('backend: "tensorrt" ' + text), model_name="m", gpus=None)
    backend.auto_complete(config, files, 1)
    return backend.load(normalize(config, gpus=backend.gpus()), files, 1)


@pytest.fixture
def open_runner(platform: Any) -> Iterator[Any]:
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


def test_graphs_of_shapes_that_alternate(open_runner: Any) -> None:
    """A graph must not have in it what the change of shapes left to do."""
    text = "max_batch_size: 8 optimization { cuda { graphs: true } }"
    one, theirs = open_runner(build(matmul(), (1, 8)), text), through_onnxruntime(matmul())
    for size in (1, 8, 3) * 5:
        inputs = {"x": Tensor.of(_floats(size))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))
    assert one._graphs is not None
    assert not one._graphs._given_up


def test_a_shape_tensor_is_read_on_the_host(open_runner: Any) -> None:
    content = build(reshape(), (1, 64), width=0, values=((1, 1), (2, 3), (64, 64)))
    one, theirs = open_runner(content), through_onnxruntime(reshape())
    for shape in ((2, 3), (3, 2), (6, 1), (2, 3)):
        inputs = {"x": Tensor.of(_floats(1, 6)[0]), "shape": Tensor.of(np.array(shape, np.int64))}
        _same(one.run(inputs, ()), theirs.run(inputs, ()))


def test_two_instances_at_once(platform: Any) -> None:
    model, theirs = load(platform, build(matmul(), (1, 8)), BATCHING), through_onnxruntime(matmul())
    runners = [model.create_instance(GPU) for _ in range(2)]
    wrong: list[Any] = []

    def ask(one: Any, seed: int) -> None:
        rng = np.random.default_rng(seed)
        for _ in range(200):
            inputs = {"x": Tensor.of(rng.standard_normal((int(rng.integers(1, 9)), 4)).astype(np.float32))}
            if not np.allclose(one.run(inputs, ())["y"].array, theirs.run(inputs, ())["y"].array, CLOSE, CLOSE):
                wrong.append(inputs)

    threads = [threading.Thread(target=ask, args=(one, seed)) for seed, one in enumerate(runners)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for closing in (*runners, model):
        closing.close()
    assert not wrong


def test_every_gpu_of_the_machine(platform: Any) -> None:
    if len(platform.gpus) < 2:
        pytest.skip("this machine has one GPU")
    listed = ", ".join(map(str, platform.gpus))
    model = load(platform, build(matmul(), (1, 8)), f"instance_group {{ kind: KIND_GPU gpus: [{listed}] }}")
    inputs = {"x": Tensor.of(_floats(2))}
    wanted = through_onnxruntime(matmul()).run(inputs, ())
    for index in platform.gpus:
        one = model.create_instance(InstanceSpec(f"m_{index}", "GPU", index))
        _same(one.run(inputs, ()), wanted)
        one.close()
    model.close()


@pytest.mark.parametrize("precision", [Precision.FP32, Precision.FP16])
@pytest.mark.parametrize("kind", ["llama", "mistral", "qwen2", "qwen3", "gpt2"])
def test_a_decoder_gives_the_tokens_of_onnxruntime(
    platform: Any, kind: str, precision: Precision, tmp_path: Path
) -> None:
    """A cache of 65 tokens: rows of it begin where TensorRT takes no address."""
    if over_interfaces():
        pytest.skip("the imitation of a builder takes no decoder")
    checkpoint = synthetic_checkpoint(tmp_path / "checkpoint", kind)
    original = tmp_path / "std"
    make_folder(checkpoint, original, form=Form.STD, precision=precision, capacity=65)
    folder = plan_folder_of(original, tmp_path / "plan")
    ours = TensorRtDecoder(folder, RunnerOptions(max_sequences=4), platform=platform)
    theirs = OrtStdRunner(original, RunnerOptions(max_sequences=4))
    try:
        tokens, expected = greedy(ours), greedy(theirs)
    finally:
        ours.close()
        theirs.close()
    same = sum(a == b for mine, other in zip(tokens, expected, strict=True) for a, b in zip(mine, other, strict=True))
    total = sum(map(len, expected))
    assert same == total if precision is Precision.FP32 else same >= total // 2  # fp16 rounds elsewhere


def plan_folder_of(source: Path, target: Path) -> Path:
    """The folder with a plan, as the converter makes it."""
    converter = DecoderConverter()
    options = {name: one.default for name, one in converter.options.items() if one.default is not None}
    options |= {"max_sequences": "4", "tf32": "false"}
    plan = converter.plan(ConversionSource(source, "genai_config.json", "decoder", None), options)
    target.mkdir()
    converter.build(ConversionJob(source, target, plan.settings))
    for file in source.iterdir():
        if not (target / file.name).exists() and not file.name.startswith("model.onnx"):
            (target / file.name).write_bytes(file.read_bytes())
    return target


def greedy(runner: Any) -> list[list[int]]:
    """The tokens of three sequences, 12 steps."""
    seqs, tokens = [], []
    for prompt in ([3, 5, 9, 17, 4, 22, 8], [11, 2], [40, 41, 42, 43, 44]):
        seqs.append(runner.open())
        (line,) = runner.step([Segment(seqs[-1], np.array(prompt, np.int32), Logits.LAST)]).logits
        tokens.append([int(line.argmax())])
    going = DecodeRound.of(seqs)
    for _ in range(12):
        going.tokens[:] = [one[-1] for one in tokens]
        for line, one in zip(runner.step(going).logits, tokens, strict=True):
            one.append(int(line.argmax()))
    return tokens


def test_the_runtime_cache_is_written_and_read(platform: Any, tmp_path: Path) -> None:
    from repoagent.engines.bindings import FLAVOUR

    if FLAVOUR is not Flavour.RTX:
        pytest.skip("TensorRT itself has no runtime cache")
    content, path = build(matmul(), (1, 8)), tmp_path / "cache"
    for _ in range(2):
        engine = platform.open(content, EngineOptions(runtime_cache=str(path)))
        engine.new_context().close()
        engine.close()
        assert path.stat().st_size
    path.write_bytes(b"of another version")
    platform.open(content, EngineOptions(runtime_cache=str(path))).close()


def test_onnx_runtimes_gpu_provider_gives_the_numbers_of_its_cpu(tmp_path: Path) -> None:
    backend = OnnxRuntimeBackend({"engine-cache-directory": str(tmp_path)})
    if not backend.gpus():
        pytest.skip("this ONNX Runtime has no GPU provider: install onnxruntime-gpu in place of onnxruntime")
    files = files_of(matmul(), "model.onnx")
    config = normalize(read_text('backend: "onnxruntime" max_batch_size: 8'), model_name="m", gpus=None)
    backend.auto_complete(config, files, 1)
    model = backend.load(normalize(config, gpus=backend.gpus()), files, 1)
    inputs = {"x": Tensor.of(_floats(4))}
    _same(model.create_instance(GPU).run(inputs, ()), through_onnxruntime(matmul()).run(inputs, ()))
    model.close()


@pytest.mark.parametrize("damage", ["garbage", "cut off", "flipped"])
def test_damaged_plans_are_refused(platform: Any, damage: str) -> None:
    plan = build(matmul(), (1, 8))
    content = {"garbage": b"garbage" * 20, "cut off": plan[:-9], "flipped": b"\xff" * 100 + plan[100:]}[damage]

    def open_it() -> None:
        platform.check_plan(content, 0)
        platform.open(content, EngineOptions())

    with pytest.raises((InvalidArgumentError, UnsupportedError, InternalError)):
        open_it()


def test_memory_is_given_back(platform: Any) -> None:
    from repoagent.engines.cuda.device import checked, runtime

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
