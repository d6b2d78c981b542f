"""The body of an inference request. The texts of errors are tested against a recording of Triton in ``http``."""

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from repoagent_server.codec.infer_request import OutputEncoding, read_infer

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.serving.requests.tensor import DataType


def _input(**members: Any) -> dict[str, Any]:
    return {"name": "X", "datatype": "FP32", "shape": [2], "data": [1, 2], **members}


def _body(*inputs: Any, **members: Any) -> bytes:
    return json.dumps({"inputs": inputs, **members}).encode()


def _read_json(body: bytes) -> Any:
    return read_infer(body, len(body), "m", "")


def test_everything_a_request_can_say_is_passed_on() -> None:
    parameters = {
        "sequence_id": 7,
        "sequence_start": True,
        "sequence_end": False,
        "priority": 3,
        "timeout": 1000,
        "binary_data_output": True,
        "mine": "x",
        "big": 2**70,
    }
    outputs = [{"name": "A", "parameters": {"binary_data": False}}, {"name": "B"}]
    body = _body(_input(), id="r1", parameters=parameters, outputs=outputs)
    request, form = read_infer(body, len(body), "m", "3")
    assert (request.model_name, request.model_version, request.id) == ("m", "3", "r1")
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == (7, True, False)
    assert (request.priority, request.timeout_us) == (3, 1000)
    assert request.parameters == {"mine": "x", "big": float(2**70)}
    assert request.requested_outputs == ("A", "B")
    assert form == OutputEncoding(default_binary=True, binary={"A": False, "B": False})
    assert request.inputs["X"].data_type is DataType.FP32
    assert request.inputs["X"].array.tolist() == [1, 2]


def test_a_sequence_can_have_a_text_for_an_id() -> None:
    request, _ = _read_json(_body(_input(), parameters={"sequence_id": "abc"}))
    assert request.correlation_id == "abc"


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "UINT8"])
@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("kind", [bytes, memoryview])
def test_a_boolean_is_no_number(datatype: str, value: bool, kind: Callable[[bytes], Any]) -> None:
    with pytest.raises(RepoAgentError, match="Unable to parse 'data': attempt to access JSON non-"):
        _read_json(kind(_body(_input(datatype=datatype, data=[1, value]))))


def test_json_and_binary_tensors_can_be_mixed_and_binary_ones_are_not_copied() -> None:
    values = np.arange(4, dtype=np.int64)
    head = _body(
        _input(),
        {"name": "Y", "datatype": "INT64", "shape": [2, 2], "parameters": {"binary_data_size": 32}},
        {"name": "Z", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 6}},
    )
    head += b" " * (-len(head) % 8)
    body = bytearray(head + values.tobytes() + b"\2\0\0\0ab")
    request, _ = read_infer(body, len(head), "m", "")
    assert request.inputs["X"].array.tolist() == [1, 2]
    assert request.inputs["Y"].array.tolist() == [[0, 1], [2, 3]]
    assert np.shares_memory(request.inputs["Y"].array, np.frombuffer(body, np.uint8))
    assert request.inputs["Z"].array.tolist() == [b"ab"]


def test_a_scalar_has_an_empty_shape() -> None:
    request, _ = _read_json(_body(_input(shape=[], data=[5])))
    assert request.inputs["X"].array.shape == ()


@pytest.mark.parametrize("size", [-1, 1.5, "2", True, None])
def test_a_size_that_is_no_whole_number_of_64_bits_is_refused_as_in_triton(size: object) -> None:
    with pytest.raises(InternalError) as error:
        _read_json(_body(_input(shape=[size], data=[])))
    reason = "attempt to access JSON non-unsigned-integer as unsigned-integer"
    assert str(error.value) == f"Unable to parse 'shape': {reason}"


@pytest.mark.parametrize("shape", [[0, 2**63], [0, 2**62, 2**62]])
def test_a_shape_that_no_array_can_have_is_refused(shape: list[int]) -> None:
    with pytest.raises(InvalidArgumentError, match="which no array can have"):
        _read_json(_body(_input(shape=shape, data=[])))


def test_a_shape_of_too_many_dimensions_is_refused_before_they_are_multiplied() -> None:
    with pytest.raises(InvalidArgumentError, match="65 dimensions, and at most 64"):
        _read_json(_body(_input(shape=[1] * 65, data=[])))


def test_a_huge_shape_takes_no_memory() -> None:
    with pytest.raises(RepoAgentError):
        _read_json(_body(_input(shape=[2**40])))
    head = _body({"name": "X", "datatype": "FP32", "shape": [2**40], "parameters": {"binary_data_size": 8}})
    with pytest.raises(InvalidArgumentError, match=f"Expected {2**42}, got 8"):
        read_infer(head + bytes(8), len(head), "m", "")


@pytest.mark.parametrize(
    "members",
    [
        {"inputs": [_input(data=None) | {"parameters": {"shared_memory_region": "r"}}]},
        {"outputs": [{"name": "A", "parameters": {"shared_memory_region": "r"}}]},
    ],
)
def test_shared_memory_is_off_by_default(members: dict[str, Any]) -> None:
    if "inputs" in members:
        del members["inputs"][0]["data"]
    document = {"inputs": [_input()], **members}
    with pytest.raises(UnsupportedError, match="Client shared memory is disabled"):
        _read_json(json.dumps(document).encode())
