"""Requests that are made without parsing are what parsing would have made of them."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from repoagent_server.codec.infer_request import OutputEncoding, read_infer
from repoagent_server.codec.request_templates import RequestTemplates

from repoagent.serving.requests.request import Asked


def _input(name: str = "X", values: Any = (1.5, 2.5), **members: Any) -> dict[str, Any]:
    return {"name": name, "datatype": "FP32", "shape": [len(values)], "data": list(values), **members}


def _json(*inputs: Any, **members: Any) -> tuple[bytes, int]:
    body = json.dumps({"inputs": inputs, **members}).encode()
    return body, len(body)


def _binary(*arrays: np.ndarray, **members: Any) -> tuple[bytes, int]:
    inputs = [
        {
            "name": f"in{index}",
            "datatype": {"f": "FP32", "b": "INT8"}[array.dtype.char],
            "shape": array.shape,
            "parameters": {"binary_data_size": array.nbytes},
        }
        for index, array in enumerate(arrays)
    ]
    head = json.dumps({"inputs": inputs, **members}).encode()
    return head + b"".join(array.tobytes() for array in arrays), len(head)


def _floats(*values: float) -> np.ndarray:
    return np.array([values], np.float32)


def _remembered(known: RequestTemplates, body: bytes, length: int) -> None:
    known.remember(body, length, *read_infer(body, length, "m", ""))


def _same(found: Any, parsed: tuple[Asked, OutputEncoding]) -> bool:
    one, other = found[0], parsed[0]
    return (
        found[1] == parsed[1]
        and replace(one, inputs={}) == replace(other, inputs={})
        and list(one.inputs) == list(other.inputs)
        and all(
            tensor.data_type is other.inputs[name].data_type
            and tensor.array.dtype == other.inputs[name].array.dtype
            and tensor.array.shape == other.inputs[name].array.shape
            and tensor.array.tobytes() == other.inputs[name].array.tobytes()
            for name, tensor in one.inputs.items()
        )
    )


_LONG = [value / 8 for value in range(200)]


@pytest.mark.parametrize(
    ("first", "later"),
    [
        (_json(_input()), _json(_input(values=[3, -4.25]))),
        (_json(_input(values=_LONG)), _json(_input(values=_LONG[::-1]))),
        (
            _json(_input("A"), _input("B", [1, 2, 3], datatype="INT64"), outputs=[{"name": "y"}, {"name": "z"}]),
            _json(_input("A"), _input("B", [7, 8, 9], datatype="INT64"), outputs=[{"name": "y"}, {"name": "z"}]),
        ),
        (
            _json(_input(), parameters={"binary_data_output": True}),
            _json(_input(values=[0, 0]), parameters={"binary_data_output": True}),
        ),
        (_binary(_floats(1, 2), np.ones((1, 3), np.int8)), _binary(_floats(5, 6), np.full((1, 3), 7, np.int8))),
        (
            _binary(_floats(1), outputs=[{"name": "y", "parameters": {"binary_data": True}}]),
            _binary(_floats(2), outputs=[{"name": "y", "parameters": {"binary_data": True}}]),
        ),
    ],
    ids=["json", "long", "two inputs", "binary answer", "binary", "binary output"],
)
def test_a_request_like_an_earlier_one_is_what_parsing_makes_of_it(
    first: tuple[bytes, int], later: tuple[bytes, int]
) -> None:
    known = RequestTemplates()
    assert known.read(*first, "m", "") is None
    _remembered(known, *first)
    found = known.read(*later, "n", "3")
    assert found is not None
    assert _same(found, read_infer(*later, "n", "3"))


def test_tensors_are_aligned_wherever_they_lie() -> None:
    known = RequestTemplates()
    for size in range(1, 9):
        sent = _binary(np.ones((1, size), np.int8), _floats(1, 2))
        _remembered(known, *sent)
        found = known.read(*sent, "m", "")
        assert found is not None
        assert found[0].inputs["in1"].array.flags.aligned
        np.testing.assert_array_equal(found[0].inputs["in1"].array, _floats(1, 2))


@pytest.mark.parametrize(
    "other",
    [
        _json(_input("Y")),
        _json(_input(shape=[1, 2])),
        _json(_input(values=[1, 2, 3])),
        _json(_input(), id="7"),
        _json(_input(values=[1, 2], data=[1])),
        _json(_input(values=[1, 2], data=[1, True])),
        _json(_input(values=[1, 2], data=[1, "2"])),
        _json(_input(values=[1, 2], data=[[1], 2])),
        _json(_input(values=[1, 2], data=[1, float("nan")])),
    ],
)
def test_what_differs_in_more_than_usual_values_is_parsed(other: tuple[bytes, int]) -> None:
    known = RequestTemplates()
    _remembered(known, *_json(_input()))
    assert known.read(*other, "m", "") is None


def test_a_binary_body_that_is_too_short_or_too_long_is_parsed() -> None:
    known = RequestTemplates()
    body, length = _binary(_floats(1, 2))
    _remembered(known, body, length)
    assert known.read(body, length, "m", "") is not None
    for wrong in (body[:-1], body + b"1", body[:length]):
        assert known.read(wrong, length, "m", "") is None


@pytest.mark.parametrize(
    "sent",
    [
        _json(_input(), id="1"),
        _json(_input(), parameters={"priority": 1}),
        _json(_input(), parameters={"mine": "x"}),
        _json(_input(), outputs=[{"name": "y", "parameters": {"classification": 2}}]),
        _json(_input(values=[])),
        _json(_input(values=["a"], datatype="BYTES")),
        _json(_input(values=[True], datatype="BOOL")),
        _json(_input(values=[1, 2], data=[[1], [2]])),
        _json(_input(mine="m" * 5000)),
        _json(_input(mine="\n")),
        _binary(_floats(1), mine="m" * 5000),
        _json(),
    ],
    ids=[
        "id",
        "priority",
        "parameter",
        "classes",
        "empty",
        "bytes",
        "bool",
        "nested",
        "long",
        "escape",
        "long2",
        "none",
    ],
)
def test_only_plain_requests_are_remembered(sent: tuple[bytes, int]) -> None:
    known = RequestTemplates()
    _remembered(known, *sent)
    assert known.read(*sent, "m", "") is None


@pytest.mark.parametrize(
    "text",
    [
        # Which of two lists counts, and for which input, cannot be told from what is around them.
        '{"mine":{"data":[1]},"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data" :[0]}]}',
        '{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1],"data":[2]}]}',
        '{"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data":[1]}],"mine":{"data":[3]}}',
        (
            '{"mine":{"data":[1]},"inputs":[{"name":"A","datatype":"FP32","shape":[1],"data":[1]},'
            '{"name":"B","datatype":"FP32","shape":[1],"data" :[0]}]}'
        ),
        '{"mine":"x\\"data\\":[1]","inputs":[{"name":"X","datatype":"FP32","shape":[1],"data" :[0]}]}',
        '{"inputs":[],"inputs":[{"name":"X","datatype":"FP32","shape":[1],"data" :[0]}],"mine":{"data":[0]}}',
    ],
)
def test_lists_that_are_not_the_values_of_the_inputs_are_not_taken_for_them(text: str) -> None:
    known = RequestTemplates()
    _remembered(known, text.encode(), len(text))
    assert known.read(text.encode(), len(text), "m", "") is None


def test_a_tensor_in_the_json_before_binary_ones_keeps_its_own_values() -> None:
    known = RequestTemplates()
    inputs = [_input("A", [5]), {"name": "B", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": 4}}]
    head = json.dumps({"inputs": inputs}).encode()
    body = head + _floats(6).tobytes()
    _remembered(known, body, len(head))
    assert known.read(body, len(head), "m", "") is None


def test_what_is_remembered_is_bounded() -> None:
    known = RequestTemplates()
    for index in range(600):
        _remembered(known, *_json(_input(f"X{index}")))
        _remembered(known, *_binary(_floats(*range(1 + index))))
    assert max(len(known._json), len(known._binary)) <= 256
