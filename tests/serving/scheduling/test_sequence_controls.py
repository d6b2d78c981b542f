from typing import Any

import numpy as np
import pytest

from repoagent.config import ModelConfig, read_text
from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import DataType, Tensor
from repoagent.serving.scheduling.sequence_controls import SequenceControls
from repoagent.serving.scheduling.sequence_table import Slot

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
