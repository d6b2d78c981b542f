import os
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from repoagent import turns
from repoagent.config import ModelConfig, normalize, read_text
from repoagent.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
)
from repoagent.serving.backends.onnxruntime.backend import _TYPES, OnnxRuntimeBackend, run_options, session_options
from repoagent.serving.instances.backend import Capability, InstanceSpec
from repoagent.serving.requests.tensor import DataType, Tensor
from repoagent.storage.files.files import DirectoryFiles

CPU = InstanceSpec("m_0", "CPU")
FileMaker = Callable[[Mapping[str, bytes]], Any]


@pytest.fixture
def open_model(memory_files: FileMaker) -> Callable[..., Any]:
    """Loads ``content`` as version 1, the configuration completed from it, and gives a runner."""

    def load(content: bytes, text: str = "", settings: Mapping[str, str] | None = None) -> Any:
        backend, files = OnnxRuntimeBackend(settings), memory_files({"1/model.onnx": content})
        config = normalize(read_text('backend: "onnxruntime" ' + text), model_name="m")
        backend.auto_complete(config, files, 1)
        return backend.load(config, files, 1).create_instance(CPU)

    return load


def test_numbers_go_in_and_out_without_a_copy_of_the_input(open_model: Any, add_constant: Any) -> None:
    runner = open_model(add_constant(0.5))
    array = np.frombuffer(np.arange(8, dtype=np.float32).tobytes(), np.float32).reshape(2, 4)
    outputs = runner.run({"x": Tensor.of(array)}, ())
    assert outputs["y"].data_type is DataType.FP32
    np.testing.assert_array_equal(outputs["y"].array, array + 0.5)


@pytest.mark.parametrize(
    ("onnx_type", "values"),
    [
        (TensorProto.BOOL, np.array([[True, False, True, False]])),
        (TensorProto.UINT8, np.array([[0, 1, 2, 255]], np.uint8)),
        (TensorProto.INT64, np.array([[0, -1, 2, 2**62]], np.int64)),
        (TensorProto.FLOAT16, np.array([[0, 0.5, 1, -2]], np.float16)),
        (TensorProto.DOUBLE, np.array([[0, 0.1, 1, -2]], np.float64)),
    ],
)
def test_data_types_pass_unchanged(open_model: Any, onnx_model: Any, onnx_type: int, values: Any) -> None:
    outputs = open_model(onnx_model(data_type=onnx_type)).run({"x": Tensor.of(values)}, ["y"])
    assert outputs["y"].data_type is Tensor.of(values).data_type
    np.testing.assert_array_equal(outputs["y"].array, values)


def test_text_is_bytes_on_our_side(open_model: Any, onnx_model: Any) -> None:
    values = np.array([[b"a", b"b\x00c", "é".encode(), b""]], dtype=object)
    outputs = open_model(onnx_model(data_type=TensorProto.STRING)).run({"x": Tensor.of(values)}, ())
    assert outputs["y"].data_type is DataType.BYTES
    assert outputs["y"].array.tolist() == values.tolist()


def test_bytes_that_are_no_text_are_refused_with_the_input(open_model: Any, onnx_model: Any) -> None:
    values = np.array([[b"a", b"\xff", b"", b""]], dtype=object)
    with pytest.raises(InvalidArgumentError, match="input 'x' has an element that is not UTF-8"):
        open_model(onnx_model(data_type=TensorProto.STRING)).run({"x": Tensor.of(values)}, ())


def test_bfloat16_travels_as_its_bits(open_model: Any, onnx_model: Any) -> None:
    bits = np.array([[0x3F80, 0x4000, 0, 0x0001]], np.uint16)
    runner = open_model(onnx_model(data_type=TensorProto.BFLOAT16))
    outputs = runner.run({"x": Tensor(DataType.BF16, bits)}, ())
    assert outputs["y"].data_type is DataType.BF16
    np.testing.assert_array_equal(outputs["y"].array, bits)


def test_only_the_outputs_asked_for_are_returned(open_model: Any, onnx_model: Any) -> None:
    content = onnx_model("Split", outputs=("a", "b"), output_shape=("N", 2))
    edited = onnx.load_from_string(content)
    edited.graph.node[0].attribute.extend([helper.make_attribute("axis", 1), helper.make_attribute("num_outputs", 2)])
    runner = open_model(edited.SerializeToString())
    inputs = {"x": Tensor.of(np.arange(4, dtype=np.float32).reshape(1, 4))}
    assert set(runner.run(inputs, ())) == {"a", "b"}
    assert runner.run(inputs, ["b"])["b"].array.tolist() == [[2, 3]]


def test_what_the_runtime_raises_keeps_its_text_and_says_where_it_comes_from(open_model: Any, onnx_model: Any) -> None:
    runner = open_model(onnx_model(shape=(2, 2)))
    with pytest.raises(InternalError, match=r"^onnx runtime error 2: Got invalid dimensions"):
        runner.run({"x": Tensor.of(np.zeros((3, 2), np.float32))}, ())
    with pytest.raises(InvalidArgumentError, match=r"^onnx runtime error: .*x"):
        runner.run({}, ())


def test_a_file_that_is_no_model_is_refused(open_model: Any) -> None:
    with pytest.raises(InternalError, match=r"^onnx runtime error 7: '1/model.onnx': "):
        open_model(b"no model")


def test_a_missing_file_is_told_by_its_path(memory_files: FileMaker) -> None:
    with pytest.raises(UnavailableError, match=r"unable to find '1/model\.onnx' for model 'm'"):
        OnnxRuntimeBackend().auto_complete(ModelConfig(name="m"), memory_files({"1/other": b""}), 1)


def test_a_closed_runner_refuses_and_the_session_of_others_lives_on(memory_files: FileMaker, add_constant: Any) -> None:
    backend, files = OnnxRuntimeBackend(), memory_files({"1/model.onnx": add_constant(1)})
    config = normalize(read_text('backend: "onnxruntime"'), model_name="m")
    backend.auto_complete(config, files, 1)
    model = backend.load(config, files, 1)
    one, two = model.create_instance(CPU), model.create_instance(CPU)
    one.close()
    model.close()
    inputs = {"x": Tensor.of(np.zeros((1, 4), np.float32))}
    with pytest.raises(UnavailableError):
        one.run(inputs, ())
    assert two.run(inputs, ())["y"].array.tolist() == [[1, 1, 1, 1]]


def test_weights_in_files_of_their_own_are_found_beside_the_model(tmp_path: Path, add_constant: Any) -> None:
    version = tmp_path / "1"
    version.mkdir()
    model = onnx.load_from_string(add_constant(3))
    onnx.save_model(
        model, str(version / "model.onnx"), save_as_external_data=True, location="weights.bin", size_threshold=0
    )
    assert (version / "weights.bin").exists()
    config = read_text(
        """
        name: "m"
        input { name: "x" data_type: TYPE_FP32 dims: [ -1, 4 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ -1, 4 ] }
        """
    )
    runner = OnnxRuntimeBackend().load(config, DirectoryFiles(tmp_path), 1).create_instance(CPU)
    outputs = runner.run({"x": Tensor.of(np.zeros((1, 4), np.float32))}, ())
    assert outputs["y"].array.tolist() == [[3, 3, 3, 3]]


@pytest.mark.parametrize("place", ["1", "1/model.onnx"])
@pytest.mark.parametrize("location", ["weights.bin", "deeper/weights.bin"])
def test_weights_in_files_of_their_own_are_taken_from_memory_when_the_model_is_there(
    tmp_path: Path, memory_files: FileMaker, add_constant: Any, place: str, location: str
) -> None:
    (tmp_path / "deeper").mkdir()
    model = onnx.load_from_string(add_constant(3))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, str(path), save_as_external_data=True, location=location, size_threshold=0)
    contents = {"model.onnx": path.read_bytes(), location: (tmp_path / location).read_bytes(), "labels.txt": b"a"}
    path.unlink()
    (tmp_path / location).unlink()
    files = memory_files({f"{place}/{name}": content for name, content in contents.items()})
    backend, config = OnnxRuntimeBackend(), normalize(read_text('backend: "onnxruntime"'), model_name="m")
    backend.auto_complete(config, files, 1)
    runner = backend.load(config, files, 1).create_instance(CPU)
    del files
    outputs = runner.run({"x": Tensor.of(np.zeros((1, 4), np.float32))}, ())
    assert outputs["y"].array.tolist() == [[3, 3, 3, 3]]


def test_the_model_may_be_a_directory(memory_files: FileMaker, add_constant: Any) -> None:
    files = memory_files({"1/model.onnx/model.onnx": add_constant(2)})
    config = ModelConfig(name="m")
    OnnxRuntimeBackend().auto_complete(config, files, 1)
    assert config.input[0].name == "x"


def test_nothing_is_completed_where_nothing_is_missing(memory_files: FileMaker) -> None:
    config = read_text('name: "m" input { name: "a" } output { name: "b" }')
    OnnxRuntimeBackend().auto_complete(config, memory_files({}), 1)
    assert config.input[0].name == "a"


def test_a_type_that_the_protocol_does_not_know_is_refused(open_model: Any, onnx_model: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"tensor 'x' of the model has type 'tensor\(float8e4m3fn\)'"):
        open_model(onnx_model(data_type=TensorProto.FLOAT8E4M3FN))


@pytest.fixture
def classifier() -> bytes:
    """What skl2onnx makes of a classifier unless it is asked for a matrix of probabilities."""
    parts = [
        helper.make_node(
            "LinearClassifier", ["x"], ["label", "scores"], domain="ai.onnx.ml",
            coefficients=[1.0, 0, 0, 0, -1.0, 0, 0, 0], intercepts=[0.0, 0.0], classlabels_ints=[0, 1],
        ),
        helper.make_node("ZipMap", ["scores"], ["probabilities"], domain="ai.onnx.ml", classlabels_int64s=[0, 1]),
    ]  # fmt: skip
    row = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, None))
    outputs = [
        helper.make_tensor_value_info("label", TensorProto.INT64, ["N"]),
        helper.make_value_info("probabilities", helper.make_sequence_type_proto(row)),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 4])]
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("ai.onnx.ml", 1)]
    model = helper.make_model(helper.make_graph(parts, "g", inputs, outputs), opset_imports=imports, ir_version=10)
    content: bytes = model.SerializeToString()
    return content


def test_outputs_that_cannot_be_served_are_left_out_with_a_warning(
    open_model: Any, classifier: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """U5: skl2onnx writes them by default."""
    answer = open_model(classifier).run({"x": Tensor.of(np.array([[1, 0, 0, 0], [-1, 0, 0, 0]], np.float32))}, ())
    assert {name: tensor.array.tolist() for name, tensor in answer.items()} == {"label": [0, 1]}
    assert [record.getMessage() for record in caplog.records if "zipmap" in record.getMessage()] == [
        "model 'm' is served without one of its outputs: tensor 'probabilities' of the model has type "
        "'seq(map(int64,tensor(float)))', which cannot be served; write the model with skl2onnx.to_onnx(..., "
        "options={'zipmap': False}); supported are " + ", ".join(_TYPES)
    ]


def test_a_model_without_an_output_that_can_be_served_is_refused(open_model: Any, classifier: bytes) -> None:
    model = onnx.load_from_string(classifier)
    del model.graph.output[0]
    with pytest.raises(UnsupportedError, match=r"tensor 'probabilities'.*options=\{'zipmap': False\}"):
        open_model(model.SerializeToString())


def test_a_gpu_instance_is_refused_by_name(memory_files: FileMaker, add_constant: Any) -> None:
    files, config = memory_files({"1/model.onnx": add_constant(1)}), ModelConfig(name="m")
    backend = OnnxRuntimeBackend()
    backend.auto_complete(config, files, 1)
    with pytest.raises(UnsupportedError, match="model 'm' asks for a GPU"):
        backend.load(config, files, 1).create_instance(InstanceSpec("m_0", "GPU"))


def test_a_default_batch_size_that_is_no_number_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="default-max-batch-size"):
        OnnxRuntimeBackend({"default-max-batch-size": "many"})


def parameters(**values: str) -> ModelConfig:
    config = ModelConfig(name="m")
    for key, value in values.items():
        config.parameters[key.replace("__", ".")].string_value = value
    return config


def test_tritons_parameters_reach_the_session() -> None:
    options = session_options(
        parameters(
            intra_op_thread_count="3",
            inter_op_thread_count="2",
            execution_mode="1",
            enable_mem_arena="0",
            enable_mem_pattern="false",
        ),
        1,
    )
    assert (options.intra_op_num_threads, options.inter_op_num_threads) == (3, 2)
    assert options.execution_mode.name == "ORT_PARALLEL"
    assert (options.enable_cpu_mem_arena, options.enable_mem_pattern) == (False, False)


@pytest.mark.parametrize(
    ("level", "name"),
    [(-1, "ORT_ENABLE_BASIC"), (0, "ORT_ENABLE_ALL"), (1, "ORT_ENABLE_EXTENDED"), (2, "ORT_DISABLE_ALL")],
)
def test_the_optimisation_level_is_tritons(level: int, name: str) -> None:
    config = read_text(f"optimization {{ graph {{ level: {level} }} }}")
    assert session_options(config, 1).graph_optimization_level.name == name


def test_instances_divide_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert session_options(parameters(), 1).intra_op_num_threads == cores
    assert session_options(parameters(), 10 * cores).intra_op_num_threads == 1


def test_threads_do_not_spin_unless_told(onnx_model: Any) -> None:
    entry = "session.intra_op.allow_spinning"
    assert session_options(parameters(), 1).get_session_config_entry(entry) == "0"
    told = parameters(session__intra_op__allow_spinning="1")
    assert session_options(told, 1).get_session_config_entry(entry) == "1"


@pytest.mark.parametrize(
    "bad", [{"intra_op_thread_count": "many"}, {"enable_mem_arena": "perhaps"}, {"execution_mode": "2"}]
)
def test_a_parameter_without_sense_is_refused(bad: dict[str, str]) -> None:
    with pytest.raises(InvalidArgumentError, match=next(iter(bad))):
        session_options(parameters(**bad), 1)


def test_the_arena_can_be_shrunk_after_each_run() -> None:
    assert run_options(parameters()) is not run_options(parameters()), "each instance ends its own runs"
    options = run_options(parameters(memory__enable_memory_arena_shrinkage="cpu:0"))
    assert options.get_run_config_entry("memory.enable_memory_arena_shrinkage") == "cpu:0"


def test_two_threads_can_use_one_session_at_once(open_model: Any, add_constant: Any) -> None:
    runner = open_model(add_constant(1))

    def ask(value: int) -> bool:
        inputs = {"x": Tensor.of(np.full((1, 4), value, np.float32))}
        return bool((runner.run(inputs, ())["y"].array == value + 1).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(500)))


class AnnouncedTurns(turns.Turns):
    """Releases ``waiting`` for each seat that has to wait."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting = threading.Semaphore(0)

    def enter(self, seat: turns.Seat) -> bool:
        waits = super().enter(seat)
        if waits:
            self.waiting.release()
        return waits


@pytest.fixture
def process_turns(monkeypatch: pytest.MonkeyPatch) -> AnnouncedTurns:
    found = AnnouncedTurns()
    monkeypatch.setattr(turns, "PROCESS", found)
    return found


X = {"x": Tensor.of(np.zeros((1, 4), np.float32))}


def test_a_run_waits_for_its_turn_where_models_take_turns(
    open_model: Any, add_constant: Any, process_turns: AnnouncedTurns
) -> None:
    runner, step = open_model(add_constant(0.5), settings={"turns": "true"}), process_turns.seat()
    step.take(generates=True)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(runner.run, X, ())
        assert process_turns.waiting.acquire(timeout=120)
        assert step.contended
        step.rest()
        step.leave()
        assert answer.result(120)["y"].array.tolist() == [[0.5] * 4]
    assert not process_turns.contended


@pytest.mark.parametrize(
    ("setting", "text", "takes"),
    [
        ("1", "", True),
        ("false", "", False),
        (None, "", False),
        ("true", "instance_group { count: 2 kind: KIND_CPU }", False),
        ("true", 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }', False),
    ],
)
def test_models_that_leave_cores_to_others_take_no_turns(
    open_model: Any, add_constant: Any, process_turns: AnnouncedTurns, setting: str | None, text: str, takes: bool
) -> None:
    runner = open_model(add_constant(0.5), text, {} if setting is None else {"turns": setting})
    # What waits is not run by an event loop, and tells nothing of the time that a run takes.
    assert (Capability.ONLY_COMPUTES in runner.capabilities) is not takes
    assert (Capability.MAY_RUN_FOREVER in runner.capabilities) is takes
    if not takes:
        process_turns.seat().take()
        runner.run(X, ())


def test_a_run_that_fails_or_is_ended_while_it_waits_gives_up_its_turn(
    open_model: Any, add_constant: Any, process_turns: AnnouncedTurns
) -> None:
    runner, step = open_model(add_constant(0.5), settings={"turns": "true"}), process_turns.seat()
    with pytest.raises(InternalError):
        runner.run({"x": Tensor.of(np.zeros((1, 4)))}, ())
    step.take()
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(runner.run, X, ())
        assert process_turns.waiting.acquire(timeout=120)
        runner.end_run(CancelledError("request cancelled"))
        step.leave()
        with pytest.raises(CancelledError):
            answer.result(120)
    assert not process_turns.enter(step)


def test_turns_are_true_or_false() -> None:
    with pytest.raises(InvalidArgumentError, match="turns must be true or false, not 'maybe'"):
        OnnxRuntimeBackend({"turns": "maybe"})


class _Swapped(DirectoryFiles):
    """Each read of the model after the first finds other bytes: someone writes to the directory meanwhile."""

    reads = 0

    def bytes(self, path: str) -> bytes:
        content = super().bytes(path)
        self.reads += path.endswith(".onnx")
        return content if self.reads <= 1 else content.replace(b"Tile", b"Elit")


def test_what_may_run_forever_is_seen_in_the_bytes_that_are_opened(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    node = helper.make_node("Tile", ["x", "repeats"], ["y"])
    inputs = [value("x", TensorProto.FLOAT, [None]), value("repeats", TensorProto.INT64, [1])]
    graph = helper.make_graph([node], "g", inputs, [value("y", TensorProto.FLOAT, [None])])
    (tmp_path / "1").mkdir()
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (tmp_path / "1" / "model.onnx").write_bytes(model.SerializeToString())
    config = ModelConfig(name="m", backend="onnxruntime")
    OnnxRuntimeBackend().auto_complete(config, DirectoryFiles(tmp_path), 1)
    files = _Swapped(tmp_path)
    loaded = OnnxRuntimeBackend().load(normalize(config, model_name="m", gpus=None), files, 1)
    assert Capability.MAY_RUN_FOREVER in loaded.create_instance(CPU).capabilities
    assert files.reads == 1
