"""Globs over relative paths."""

import warnings
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_decrypt.patterns import Patterns

from repoagent.api import InvalidArgumentError


@pytest.mark.parametrize(
    ("glob", "yes", "no"),
    [
        ("*.age", ["a.age", "1/a.age", "1/x/a.age", ".age"], ["a.agex", "1.age/a"]),
        ("1/*", ["1/a"], ["1/x/a", "2/a", "a", "11/a"]),
        ("1/**", ["1/a", "1/x/a"], ["2/a"]),
        ("**/w/*.bin", ["w/a.bin", "1/w/a.bin", "1/x/w/a.bin"], ["1/w/x/a.bin"]),
        ("model.???", ["model.age", "3/model.bin"], ["model.onnx", "model./ab"]),
        ("[12]/model", ["1/model", "2/model"], ["3/model"]),
        ("[!12]/model", ["3/model"], ["1/model", "//model"]),
        ("a+(b).age", ["a+(b).age"], ["aab.age"]),
        ("a[]b].age", ["a].age", "ab.age"], ["a.age"]),
        ("a[^b].age", ["a^.age", "ab.age"], ["ac.age"]),
        ("[a-c!-]x", ["ax", "cx", "!x", "-x"], ["dx"]),
        ("[!a]", ["b"], ["a"]),
        ("[a&&b|~]", ["&", "|", "~"], ["c"]),
        ("a[b.age", ["a[b.age"], ["ab.age"]),
    ],
)
def test_a_glob_matches_what_it_says(glob: str, yes: list[str], no: list[str]) -> None:
    patterns = Patterns.of([glob])
    assert [path for path in yes if not patterns.match(path)] == []
    assert [path for path in no if patterns.match(path)] == []


def test_one_of_several_is_enough_and_none_matches_nothing() -> None:
    assert Patterns.of(["a", "b"]).match("1/b")
    assert not Patterns.of([]).match("a")
    assert str(Patterns.of(["a", "b/*"])) == "'a', 'b/*'"


@pytest.mark.parametrize("glob", ["", "/etc/*", "../x", "a/../b", "a//b", "1/"])
def test_globs_that_can_never_match_are_refused(glob: str) -> None:
    with pytest.raises(InvalidArgumentError, match="relative path inside the model"):
        Patterns.of([glob])


def test_a_range_that_runs_backwards_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="backwards"):
        Patterns.of(["[z-a].age"])


@given(st.text("[]!^-&|~\\\\*?/ab.", max_size=12), st.text("[]!^-ab./", max_size=8))
def test_fuzz_any_glob_compiles_without_a_warning_or_is_refused(glob: str, path: str) -> None:
    with suppress(InvalidArgumentError), warnings.catch_warnings():
        warnings.simplefilter("error")
        Patterns.of([glob]).match(path)
