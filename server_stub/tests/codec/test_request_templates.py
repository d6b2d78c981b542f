"""Requests that are made without parsing are what parsing would have made of them."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_server.codec.binary import BY_NAME, RequestLabel
from repoagent_server.codec.infer_request import OutputEncoding, read_infer
from repoagent_server.codec.json_data import array_from_json
from repoagent_server.codec.json_text import loads
from repoagent_server.codec.request_templates import FloatParser, NumberList, RequestTemplates, float_parser

from repoagent.errors import RepoAgentError
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


# Lists of numbers that are read without being looked at are what the thorough road makes of them.

_NUMERIC = [name for name, info in BY_NAME.items() if info.code]
_PADDING = " " * 256
"""Makes a text long, so that simdjson reads it where it is installed."""


def _parsers() -> list[FloatParser | None]:
    parser = float_parser()
    return [None] if parser is None else [None, parser]


def _thorough(datatype: str, text: bytes, count: int) -> Any:
    return array_from_json(BY_NAME[datatype], loads(text), [count], count, "X", RequestLabel("m"))


@pytest.mark.slow
@pytest.mark.parametrize("parser", _parsers(), ids=lambda parser: "orjson" if parser is None else "simdjson")
@given(data=st.data())
def test_what_is_read_is_what_the_thorough_road_reads(parser: FloatParser | None, data: st.DataObject) -> None:
    datatype = data.draw(st.sampled_from(_NUMERIC))
    element = st.one_of(st.floats(), st.integers(), st.booleans(), st.none(), st.text(max_size=3), st.just([1.0]))
    usual = st.one_of(st.floats(width=32, allow_nan=False), st.integers(-(2**70), 2**70))
    values = data.draw(st.one_of(st.lists(usual, min_size=1), st.lists(element, min_size=1)))
    count = data.draw(st.sampled_from([len(values), len(values) + 1]))
    text = (json.dumps(values)[:-1] + data.draw(st.sampled_from(["", _PADDING])) + "]").encode()
    array = NumberList(BY_NAME[datatype], (count,), parser).read(text)
    if array is not None:
        expected = _thorough(datatype, text, count)
        assert (array.dtype, array.shape) == (expected.dtype, expected.shape)
        assert array.tobytes() == expected.tobytes()


@pytest.mark.parametrize("parser", _parsers(), ids=lambda parser: "orjson" if parser is None else "simdjson")
@pytest.mark.parametrize("padding", ["", _PADDING])
@pytest.mark.parametrize("datatype", _NUMERIC)
def test_usual_numbers_are_read(datatype: str, padding: str, parser: FloatParser | None) -> None:
    values = [1, 0, 100] if BY_NAME[datatype].code.lower() not in "fd" else [1.5, -0.1, 3, 1e-7, 2**63]
    text = (json.dumps(values)[:-1] + padding + "]").encode()
    array = NumberList(BY_NAME[datatype], (len(values), 1), parser).read(text)
    assert array is not None
    np.testing.assert_array_equal(array.ravel(), _thorough(datatype, text, len(values)))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("parser", _parsers(), ids=lambda parser: "orjson" if parser is None else "simdjson")
@pytest.mark.parametrize("number", ["1e39", "-1E39", "1e400", "NaN", "-Infinity"])
def test_what_no_fp32_can_hold_is_no_fault_of_ours(number: str, parser: FloatParser | None) -> None:
    text = f"[1, {number}{_PADDING}]".encode()
    array = NumberList(BY_NAME["FP32"], (2,), parser).read(text)
    if array is not None:
        assert array.tolist() == _thorough("FP32", text, 2).tolist()


@pytest.mark.parametrize("parser", _parsers(), ids=lambda parser: "orjson" if parser is None else "simdjson")
@pytest.mark.parametrize("text", ["[1]", "[1,2,3]", "[1,true]", "[1,null]", '[1,"2"]', "[1,2", "1,2", "", "[1 2]"])
def test_what_is_wrong_is_left_to_the_thorough_road(text: str, parser: FloatParser | None) -> None:
    for padding in ("", _PADDING):
        numbers = NumberList(BY_NAME["FP64"], (2,), parser)
        assert numbers.read((padding + text).encode()) is None


def test_a_parser_goes_on_after_what_it_refused() -> None:
    numbers = NumberList(BY_NAME["FP32"], (2,), float_parser())
    for _ in range(3):
        assert numbers.read(f'[1, "a"{_PADDING}]'.encode()) is None
        array = numbers.read(f"[1, 2{_PADDING}]".encode())
        assert array is not None
        assert array.tolist() == [1, 2]


def test_the_thorough_road_refuses_a_list_of_the_wrong_length() -> None:
    with pytest.raises(RepoAgentError):
        _thorough("FP32", b"[1]", 2)
