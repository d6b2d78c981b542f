"""Reading and writing JSON: the fast road, and the one for what Triton takes and orjson does not."""

import json
import math
from collections.abc import Sequence

import numpy as np
import pytest
from repoagent_server.codec.json_text import array_fragment, dumps, fragment, loads

from repoagent.errors import InternalError


def test_what_triton_accepts_beyond_the_standard_is_read() -> None:
    document = loads(b'{"a": [NaN, Infinity, -Infinity], "b": "\xff\xc3\xa9"}')
    assert math.isnan(document["a"][0])
    assert document["a"][1:] == [math.inf, -math.inf]
    assert document["b"].encode("utf-8", "surrogateescape") == b"\xff\xc3\xa9"


def test_a_byte_order_mark_is_passed_over_as_triton_does() -> None:
    assert loads(b'\xef\xbb\xbf{"a": 1}') == {"a": 1}


def test_escapes_of_characters_outside_the_basic_plane_are_read() -> None:
    # The NaN keeps the fast road from being taken.
    assert loads(rb'{"a": "\ud83d\ude00 \\ud800 \uDBFF\uDFFF", "b": NaN}')["a"] == "\U0001f600 \\ud800 \U0010ffff"


def test_parts_that_are_written_already_may_stand_beside_such_strings() -> None:
    document = {"a\udcff": "\udcff", "b": array_fragment(np.array([1, 2])), "c": [fragment("x"), ["\udcff", 1.5]]}
    assert dumps(document) == b'{"a\xff":"\xff","b":[1,2],"c":["x",["\xff",1.5]]}'


def test_half_a_pair_is_written_as_triton_writes_it() -> None:
    document = loads(rb'{"a": "\udc00"}')
    assert dumps(document) == b'{"a":"\xed\xb0\x80"}'
    assert dumps(["\ud800", "\udcff"]) == b'["\xed\xa0\x80","\xed\xb3\xbf"]'


def test_a_memoryview_is_read_like_bytes() -> None:
    assert loads(memoryview(b'{"a": 1}xyz')[:8]) == {"a": 1}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "The document is empty. at 0"),
        (b"  ", "The document is empty. at 2"),
        (b'{"a":1,}', "Missing a name for object member. at 7"),
        (b"[1,]", "Invalid value. at 3"),
        (b"[1, \n]", "Invalid value. at 5"),
        (b'{"a":"\\u12"}', "Incorrect hex digit after \\u escape in string. at 6"),
        (b'{"a":"b\x01"}', "Invalid escape character in string. at 7"),
        (b'{"a":"b\\ud800"}', "The surrogate pair in string is invalid. at 7"),
        (b'{"a":"\\udc00\\uD800x"}', "The surrogate pair in string is invalid. at 12"),
        (b'{"a":"\\\\\\uDBFF\\u0041"}', "The surrogate pair in string is invalid. at 8"),
        (b'{"a":"\\ud800\\ud800\\udc00"}', "The surrogate pair in string is invalid. at 6"),
        (b"\xef\xbb\xbf", "The document is empty. at 3"),
        (b"\xef\xbb\xbf{", "Missing a name for object member. at 4"),
        (b'{"\xc3\xa9":x}', "Invalid value. at 6"),
        (b'["]}", {"b": 1 2}]', "Missing a comma or '}' after an object member. at 15"),
        (b"[1, " + b"9" * 5000 + b"]", "Number too big to be stored in double. at 4"),
        (b"[" + b"1" * 308 + b", -1" + b"0" * 309 + b"]", "Number too big to be stored in double. at 311"),
    ],
)
def test_what_is_no_json_is_refused_with_the_byte_where_it_ends(text: bytes, reason: str) -> None:
    with pytest.raises(InternalError) as error:
        loads(text)
    assert str(error.value) == f"failed to parse the request JSON buffer: {reason}"


def _array(values: Sequence[float], dtype: str = "f4") -> bytes:
    return dumps([array_fragment(np.array(values, dtype))])


def test_arrays_are_written_as_numbers_and_booleans() -> None:
    assert _array([0.1, 2]) == b"[[0.1,2.0]]"
    assert _array([1, -2], "i1") == b"[[1,-2]]"
    assert _array([True, False], "?") == b"[[true,false]]"
    assert _array([]) == b"[[]]"


def test_what_is_not_finite_is_written_as_triton_writes_it() -> None:
    assert _array([math.nan, math.inf, -math.inf, 1]) == b"[[NaN,Infinity,-Infinity,1.0]]"


def test_strings_that_are_not_utf8_are_written_as_they_came() -> None:
    text = b"\xff\xc3\xa9".decode("utf-8", "surrogateescape")
    assert dumps([text]) == b'["\xff\xc3\xa9"]'
    assert dumps({"a": fragment([text, "null"]), "b": None}) == b'{"a":["\xff\xc3\xa9","null"],"b":null}'


def test_what_is_written_is_read_back_by_another_parser() -> None:
    values = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    assert np.array_equal(np.array(json.loads(dumps(array_fragment(values))), np.float32), values)
