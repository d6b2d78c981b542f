"""Requests that are recognised mean what the parser makes of them."""

from typing import Any

import numpy as np
import pytest
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.known_requests import KnownRequests
from repoagent_server.grpc.request import Decoded, read_infer

from repoagent.errors import RepoAgentError

FINAL = {"triton_enable_empty_final_response": {"bool_param": True}}


def message(value: float = 1.0, count: int = 4, inputs: int = 2, **fields: Any) -> pb.ModelInferRequest:
    made = pb.ModelInferRequest(**{"model_name": "m"} | fields)
    for index in range(inputs):
        made.inputs.add(name=f"in{index}", datatype="FP32", shape=[1, count])
        made.raw_input_contents.append(np.full(count, value + index, np.float32).tobytes())
    return made


def learn(known: KnownRequests, made: pb.ModelInferRequest) -> None:
    known.remember(made.SerializeToString(), made, read_infer(made))


def same(found: Decoded | None, made: pb.ModelInferRequest) -> bool:
    assert found is not None
    expected = read_infer(made)
    for name, tensor in expected.asked.inputs.items():
        assert found.asked.inputs[name].data_type is tensor.data_type
        assert np.array_equal(found.asked.inputs[name].array, tensor.array)
    assert list(found.asked.inputs) == list(expected.asked.inputs)
    skipped = {"inputs"}
    fields = [name for name in expected.asked.__slots__ if name not in skipped]
    assert [getattr(found.asked, name) for name in fields] == [getattr(expected.asked, name) for name in fields]
    return found.empty_final == expected.empty_final and found.requested == expected.requested


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"model_version": "3"},
        {"parameters": FINAL},
        {"parameters": {"priority": {"int64_param": 3}, "mine": {"string_param": "x"}}},
        {"parameters": {"sequence_id": {"int64_param": 9}, "sequence_start": {"bool_param": True}}},
        {"model_name": "n" * 127},
    ],
)
@pytest.mark.parametrize("request_id", ["", "a", "b" * 127])
def test_other_values_and_another_id_make_no_difference(fields: dict[str, Any], request_id: str) -> None:
    known = KnownRequests()
    learn(known, message(id="first", **fields))
    again = message(7.0, id=request_id, **fields)
    assert same(known.read(again.SerializeToString()), again)


@pytest.mark.parametrize(
    "other",
    [
        message(model_name="o"),
        message(model_version="2"),
        message(parameters=FINAL),
        message(count=5),
        message(inputs=1),
        message(id="c" * 128),
    ],
)
def test_what_differs_is_parsed(other: pb.ModelInferRequest) -> None:
    known = KnownRequests()
    learn(known, message())
    assert known.read(other.SerializeToString()) is None


def test_tensors_of_other_lengths_that_sum_up_to_the_same_are_parsed() -> None:
    known = KnownRequests()
    learn(known, message())
    other = message()
    other.raw_input_contents[0] += b"\0"
    other.raw_input_contents[1] = other.raw_input_contents[1][1:]
    data = other.SerializeToString()
    assert len(data) == len(message().SerializeToString())
    assert known.read(data) is None
    with pytest.raises(RepoAgentError):
        read_infer(other)


def test_parameters_of_tensors_are_not_remembered() -> None:
    known = KnownRequests()
    made = message()
    made.outputs.add(name="out").parameters["classification"].int64_param = 1
    learn(known, made)
    assert known.read(made.SerializeToString()) is None


def test_an_id_that_is_no_text_and_one_that_comes_twice_are_the_parsers() -> None:
    known = KnownRequests()
    learn(known, message(id="a"))
    data = message(id="a").SerializeToString().replace(b"\x1a\x01a", b"\x1a\x01\xff")
    assert known.read(data) is None
    twice = message(id="a").SerializeToString().replace(b"\x1a\x01a", b"\x1a\x01b\x1a\x01a")
    parsed = pb.ModelInferRequest.FromString(twice)
    assert parsed.id == "a"
    known.remember(twice, parsed, read_infer(parsed))
    assert known.read(twice) is None


@pytest.mark.parametrize("cut", range(0, 60, 3))
def test_what_is_cut_is_not_recognised(cut: int) -> None:
    known = KnownRequests()
    data = message(id="a").SerializeToString()
    learn(known, message(id="a"))
    assert known.read(data[:cut]) is None
    assert known.read(data) is not None


def test_only_so_much_is_remembered() -> None:
    known = KnownRequests()
    for count in range(1, 1000):
        learn(known, message(count=count, inputs=1))
    assert len(known._known) <= 256
