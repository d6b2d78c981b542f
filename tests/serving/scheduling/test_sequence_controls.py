import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import DISCARD, Asked, InferRequest
from repoagent.serving.requests.tensor import DataType, Tensor
from repoagent.serving.scheduling.sequence_controls import SequenceControls
from repoagent.serving.scheduling.sequence_table import Slot
from tests.onnx_models import floats, model_bytes

FLAGS = """
    control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0.5, 1.5 ] } }
    control_input { name: "END" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 7 ] } }
    control_input { name: "READY" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] } }
"""
CORRID = 'control_input {{ name: "CORRID" control {{ kind: CONTROL_SEQUENCE_CORRID data_type: {} }} }}'


def config(controls: str, max_batch_size: int = 4) -> ModelConfig:
    return read_text(f'name: "m" max_batch_size: {max_batch_size} sequence_batching {{ {controls} }}')


def request(**fields: Any) -> InferRequest:
    inputs = {
        "x": Tensor.of(np.ones((1, 3), np.int16)),
        "t": Tensor(DataType.BYTES, np.array([[b"a"]], object)),
    }
    return InferRequest(Asked("m", inputs, **{"correlation_id": 5, **fields}))


@pytest.mark.parametrize(
    ("start", "end", "values"),
    [
        (False, False, [0.5, 0, True]),
        (True, False, [1.5, 0, True]),
        (False, True, [0.5, 7, True]),
        (True, True, [1.5, 7, True]),
    ],
)
def test_each_flag_has_the_value_and_the_type_of_its_control(start: bool, end: bool, values: list[Any]) -> None:
    tensors = SequenceControls(config(FLAGS)).of(request(sequence_start=start, sequence_end=end))
    assert [tensor.array.tolist() for tensor in tensors.values()] == [[[value]] for value in values]
    assert [tensor.data_type for tensor in tensors.values()] == [DataType.FP32, DataType.INT32, DataType.BOOL]


def test_without_a_batch_dimension_controls_have_one_dimension() -> None:
    controls = SequenceControls(config(FLAGS + CORRID.format("TYPE_UINT64"), max_batch_size=0))
    assert {tensor.array.shape for tensor in controls.of(request()).values()} == {(1,)}


@pytest.mark.parametrize(
    ("data_type", "given", "value"),
    [
        ("TYPE_UINT64", 2**64 - 1, 2**64 - 1),
        ("TYPE_INT64", 2**64 - 1, -1),
        ("TYPE_UINT32", 2**32 + 3, 3),
        ("TYPE_INT32", 4, 4),
        ("TYPE_STRING", "é", "é".encode()),
    ],
)
def test_the_correlation_id_comes_in_the_type_that_the_model_wants(data_type: str, given: Any, value: Any) -> None:
    controls = SequenceControls(config(CORRID.format(data_type)))
    tensor = controls.of(request(correlation_id=given))["CORRID"]
    assert tensor.array.tolist() == [[value]]
    assert tensor.data_type.name == data_type.removeprefix("TYPE_").replace("STRING", "BYTES")


def test_a_request_needs_a_correlation_id() -> None:
    controls = SequenceControls(config(""))
    for nothing in (0, ""):
        with pytest.raises(InvalidArgumentError) as caught:
            controls.check(request(correlation_id=nothing))
        assert str(caught.value) == (
            "inference request to model 'm' must specify a non-zero or non-empty correlation ID"
        )
    controls.check(request(correlation_id="text"))
    controls.check(request(correlation_id=3))


@pytest.mark.parametrize(
    ("data_type", "wrong", "wanted"), [("TYPE_STRING", 3, "string"), ("TYPE_INT32", "3", "number")]
)
def test_a_correlation_id_of_the_wrong_kind_is_refused(data_type: str, wrong: Any, wanted: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"a correlation ID that is a {wanted}: control input 'CORRID'"):
        SequenceControls(config(CORRID.format(data_type))).check(request(correlation_id=wrong))


def test_a_placeholder_is_not_ready_and_has_blank_inputs_of_the_same_shapes() -> None:
    controls = SequenceControls(config(FLAGS + CORRID.format("TYPE_STRING")))
    filler = controls.placeholder(request(sequence_start=True, requested_outputs=("y",)), Slot(0, 0))
    assert filler.placeholder
    assert filler.requested_outputs == ("y",)
    values = {name: tensor.array.tolist() for name, tensor in filler.inputs.items()}
    assert values == {
        "x": [[0, 0, 0]],
        "t": [[b""]],
        "START": [[0.5]],
        "END": [[0]],
        "READY": [[False]],
        "CORRID": [[b""]],
    }
    filler.send(None, True)


STRATEGIES = ["direct { }", "oldest { max_candidate_sequences: 4 }"]
SUM = 'state { input_name: "IN" output_name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] %s }'
GROWING = """state { input_name: "IN" output_name: "OUT" data_type: TYPE_FP32 dims: [ -1 ]
    initial_state { name: "nothing" data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } }"""


def onnx_model(operator: str, states: Sequence[Any], *, batch: bool = True) -> bytes:
    """``OUT`` = ``operator`` of the state ``IN`` and ``x``, and ``y`` is the same."""
    first: list[Any] = ["N"] if batch else []
    extra: dict[str, Any] = {"axis": -1} if operator == "Concat" else {}
    nodes = [helper.make_node(operator, ["IN", "x"], ["OUT"], **extra), helper.make_node("Identity", ["OUT"], ["y"])]
    shape = [*first, *states]
    inputs = [*floats("x", shape=[*first, 1]), *floats("IN", shape=shape)]
    return model_bytes(nodes, inputs, floats("OUT", "y", shape=shape))


@pytest.fixture
def core_of(tmp_path: Path) -> Iterator[Callable[..., ServingCore]]:
    cores = []

    def make(sequences: str, content: bytes | str, *, batch: int = 4, extra: str = "", **files: bytes) -> ServingCore:
        directory = tmp_path / "models" / "m"
        (directory / "1").mkdir(parents=True)
        name = "model.py" if isinstance(content, str) else "model.onnx"
        (directory / "1" / name).write_bytes(content.encode() if isinstance(content, str) else content)
        for file, data in files.items():
            (directory / "initial_state").mkdir(exist_ok=True)
            (directory / "initial_state" / file).write_bytes(data)
        backend = "python" if isinstance(content, str) else "onnxruntime"
        (directory / "config.pbtxt").write_text(
            f'backend: "{backend}" max_batch_size: {batch} sequence_batching {{ {sequences} }} {extra}'
        )
        options = CoreOptions(
            repositories=(str(tmp_path / "models"),),
            control_mode=ControlMode.EXPLICIT,
            repoagent_directory=None,
            workspace_directory=tmp_path / "workspace",
            cache_directory=tmp_path / "cache",
        )
        cores.append(ServingCore(options))
        cores[-1].start()
        cores[-1].load("m")
        return cores[-1]

    yield make
    for core in cores:
        core.stop()


def in_sequence(
    value: float, sequence: int, flags: str = "", *, batch: bool = True, sender: Any = DISCARD, **fields: Any
) -> InferRequest:
    array = np.array([[value]] if batch else [value], np.float32)
    start, end = "S" in flags, "E" in flags
    asked = Asked("m", {"x": Tensor.of(array)}, correlation_id=sequence, sequence_start=start, sequence_end=end)
    return InferRequest(replace(asked, **fields), sender)


def step(core: ServingCore, *args: Any, **fields: Any) -> list[float]:
    outputs = core.infer(in_sequence(*args, **fields)).outputs
    assert list(outputs) == ["y"]
    found: list[float] = outputs["y"].array.ravel().tolist()
    return found


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_each_sequence_has_its_own_state(core_of: Callable[..., ServingCore], strategy: str) -> None:
    core = core_of(f"{strategy} {SUM % ''}", onnx_model("Add", [1]))
    config = core.model_config("m")
    assert [[item["name"] for item in config[side]] for side in ("input", "output")] == [["x"], ["y"]]
    sums: dict[int, list[float]] = {}

    def client(sequence: int) -> None:
        sums[sequence] = [step(core, sequence, sequence, flag)[0] for flag in ("S", "", "", "E")]

    threads = [threading.Thread(target=client, args=(sequence,)) for sequence in range(1, 9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sums == {number: [number * count for count in (1, 2, 3, 4)] for number in range(1, 9)}


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_sequences_that_are_batched_keep_their_states_apart(
    core_of: Callable[..., ServingCore], strategy: str, new_sender: Any
) -> None:
    """Their states have different shapes, too: only those of equal length can share a batch."""
    core = core_of(f"{strategy} {GROWING}", onnx_model("Concat", ["M"]))
    senders = []
    for turn in range(5):
        for sequence in range(1, 4):
            if turn >= sequence - 1:  # Each begins one turn after the other.
                senders.append((sequence, turn, new_sender()))
                flags = "S" if turn == sequence - 1 else ""
                core.submit(in_sequence(10 * sequence + turn, sequence, flags, sender=senders[-1][2]))
    for sequence, turn, sender in senders:
        response = sender.final()
        assert response.error is None
        expected = [0.0, *(10.0 * sequence + earlier for earlier in range(sequence - 1, turn + 1))]
        assert response.outputs["y"].array.tolist() == [expected]


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_sequence_begins_with_zeros_or_with_what_a_file_has(
    core_of: Callable[..., ServingCore], strategy: str
) -> None:
    initial = 'initial_state { name: "hundred" data_type: TYPE_FP32 dims: [ 1 ] data_file: "hundred" }'
    content = np.array([100], np.float32).tobytes()
    core = core_of(f"{strategy} {SUM % initial}", onnx_model("Add", [1]), hundred=content)
    assert [step(core, 1, 7, "S"), step(core, 2, 7), step(core, 3, 7, "S"), step(core, 4, 7, "E")] == [
        [101],
        [103],
        [103],
        [107],
    ]
    assert step(core, 5, 7, "S") == [105]


def test_a_state_that_is_an_output_too_goes_to_the_client_who_asks(core_of: Callable[..., ServingCore]) -> None:
    outputs = "".join(f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ 1 ] }}' for name in ("y", "OUT"))
    tensors = f'input {{ name: "x" data_type: TYPE_FP32 dims: [ 1 ] }} {outputs}'
    core = core_of(f"direct {{ }} {SUM % ''}", onnx_model("Add", [1]), extra=tensors)
    response = core.infer(in_sequence(1, 7, "S"))
    assert sorted(response.outputs) == ["OUT", "y"]
    response.outputs["OUT"].array[:] = 1000  # The client's own.
    assert list(core.infer(in_sequence(1, 7, requested_outputs=("y",))).outputs) == ["y"]
    asked = in_sequence(1, 7, requested_outputs=("OUT",))
    assert core.infer(asked).outputs["OUT"].array.tolist() == [[3]]
    assert asked.requested_outputs == ("OUT",)
    assert list(asked.asked.inputs) == ["x"]


def test_a_model_without_a_batch_dimension_has_states(core_of: Callable[..., ServingCore]) -> None:
    core = core_of(f"direct {{ }} {SUM % ''}", onnx_model("Add", [1], batch=False), batch=0)
    assert [step(core, value, 7, flag, batch=False) for value, flag in ((1, "S"), (2, ""))] == [[1], [3]]


PYTHON = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if value[0] < 0:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("negative"))
        total = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy() + value
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, total) for name in ("y", "OUT")])
"""


def test_a_python_model_has_states_and_an_error_leaves_them(core_of: Callable[..., ServingCore]) -> None:
    tensors = """input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
        instance_group { kind: KIND_CPU }"""
    core = core_of(f"direct {{ }} {SUM % ''}", PYTHON, batch=0, extra=tensors)
    assert step(core, 1, 7, "S", batch=False) == [1]
    with pytest.raises(RepoAgentError, match="negative"):
        step(core, -1, 7, batch=False)
    assert step(core, 2, 7, batch=False) == [3]


@pytest.mark.parametrize(
    ("state", "text"),
    [
        (
            SUM % 'initial_state { name: "a" data_type: TYPE_FP32 dims: [ 1 ] data_file: "small" }',
            "has 1 bytes, expected 4",
        ),
        (
            SUM % 'initial_state { name: "a" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true }',
            "must have dims above 0",
        ),
        (SUM % 'initial_state { name: "a" data_type: TYPE_INT32 dims: [ 1 ] zero_data: true }', "the data type of the"),
        (
            SUM % 'initial_state { name: "a" data_type: TYPE_FP32 dims: [ 1 ] }',
            "must have 'zero_data' or a 'data_file'",
        ),
        (
            SUM % "initial_state { data_type: TYPE_FP32 dims: [ 1 ] zero_data: true }",
            "initial_state must have a 'name'",
        ),
        (
            SUM % ("initial_state { name: 'a' data_type: TYPE_FP32 dims: [ 1 ] zero_data: true } " * 2),
            "Found '2' elements",
        ),
        (
            "state { output_name: 'OUT' data_type: TYPE_FP32 dims: [ 1 ] }",
            "must have an 'input_name' and an 'output_name'",
        ),
        ("state { input_name: 'IN' output_name: 'OUT' dims: [ 1 ] }", "a 'data_type' and 'dims' above 0, or -1"),
        (f"{SUM % ''} {SUM % ''}", "there is another input of that name"),
        (
            "state { input_name: 'IN' output_name: 'OUT' data_type: TYPE_INT32 dims: [ 1 ] }",
            "configuration expects datatype TYPE_INT32 for input 'IN', model provides TYPE_FP32",
        ),
        (
            "state { input_name: 'IN' output_name: 'NO' data_type: TYPE_FP32 dims: [ 1 ] }",
            "unexpected inference output 'NO'",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(core_of: Callable[..., ServingCore], state: str, text: str) -> None:
    with pytest.raises(RepoAgentError) as caught:
        core_of(f"direct {{ }} {state}", onnx_model("Add", [1]), small=b"1")
    assert text in str(caught.value)


def test_a_state_is_no_input_of_a_client(core_of: Callable[..., ServingCore]) -> None:
    core = core_of(f"direct {{ }} {SUM % ''}", onnx_model("Add", [1]))
    asked = in_sequence(1, 7, "S")
    asked.inputs = {**asked.inputs, "IN": asked.inputs["x"]}
    with pytest.raises(InvalidArgumentError, match="expected 1 inputs but got 2"):
        core.infer(asked)
