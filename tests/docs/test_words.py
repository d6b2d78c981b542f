"""The pages keep to the style section of CONTRIBUTING.md."""

import runpy
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def words() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).with_name("words.py")))


def test_no_page_has_a_fault(words: dict[str, Any], pages: dict[str, Any]) -> None:
    found = {name: words["faults"](page.text) for name, page in pages.items()}
    assert {name: faults for name, faults in found.items() if faults} == {}


@pytest.mark.parametrize(
    ("page", "expected"),
    [
        ("The server is told anew.", ["the word 'is told'", "the word 'anew'"]),
        ("It is no JSON, but `is no JSON` is code.", ["the word 'is no JSON'"]),
        ("```\nThe file says\n```\n\n    it says\n", []),
        ("word " * 31 + "end.", ["a sentence of 32 words: word word word word word word ...", "a line of 159 columns"]),
        ("| a row may be long | " + "x" * 100 + " |", []),
        ("- One two.\n- Three four.\n", []),
        (("Word. " * 9 + "\n") * 9, ["a paragraph of 81 words"]),
    ],
)
def test_faults_are_found(words: dict[str, Any], page: str, expected: list[str]) -> None:
    assert sorted(fault.text for fault in words["faults"](page)) == sorted(expected)
