"""The liberties that JSON text may take."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repoagent.config.relaxed_json import loads


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("{a: 1, $b_2 : true}", {"a": 1, "$b_2": True}),
        ("{'a': 'b'}", {"a": "b"}),
        ("[1, 2, ]", [1, 2]),
        ("{a: [1,],}", {"a": [1]}),
        ("{a: null, b: false}", {"a": None, "b": False}),
        ("""{a: 'say "x: y"', "b": "it's, }"}""", {"a": 'say "x: y"', "b": "it's, }"}),
        (r"{a: 'it\'s', b: 'tab\t'}", {"a": "it's", "b": "tab\t"}),
    ],
)
def test_the_liberties_are_read(text: str, value: Any) -> None:
    assert loads(text) == value


@pytest.mark.parametrize("text", ["", "{", "{a}", "a", "'a", "{'a: 1}", "{} {}"])
def test_what_is_still_not_json_is_refused_where_it_goes_wrong(text: str) -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        loads(text)
    assert caught.value.doc == text


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@pytest.mark.slow
@given(_json)
def test_strict_json_is_read_as_it_stands(value: Any) -> None:
    assert loads(json.dumps(value)) == value


@pytest.mark.slow
@given(_json)
def test_a_trailing_comma_after_strict_json_changes_nothing(value: Any) -> None:
    assert loads(f"[{json.dumps(value)},]") == [value]


@pytest.mark.slow
@pytest.mark.parametrize("piece", ["a", " ", ", ", '\\"', "\\'", '"', "'", "\\", "a ", "{a", "a:"])
@pytest.mark.parametrize("start", ["", '"', "'", ","])
def test_the_time_is_proportional_to_the_length_of_the_text(start: str, piece: str) -> None:
    """A quadratic search would take minutes here."""
    with pytest.raises(ValueError, match=r".+"):
        loads(start + piece * 300_000)
