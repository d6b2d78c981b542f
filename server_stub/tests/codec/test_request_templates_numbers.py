"""Lists of numbers that are read without being looked at are what the thorough road makes of them."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_server.codec.datatypes import BY_NAME
from repoagent_server.codec.json_data import array_from_json
from repoagent_server.codec.json_text import loads
from repoagent_server.codec.request_label import RequestLabel
from repoagent_server.codec.request_templates import FloatParser, NumberList, float_parser

from repoagent.errors import RepoAgentError

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
