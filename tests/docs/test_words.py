"""The pages keep to the style section of CONTRIBUTING.md."""

import ast
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def words() -> dict[str, Any]:
    return runpy.run_path(str(Path(__file__).with_name("words.py")))


def test_no_page_has_a_fault(words: dict[str, Any], pages: dict[str, Any], tree: Path) -> None:
    texts = {name: page.text for name, page in pages.items()}
    texts |= {str(path): path.read_text() for path in tree.glob("repoagent/cli/templates/**/README.md.txt")}
    found = {name: words["faults"](text) for name, text in texts.items()}
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


PRODUCT = (
    "repoagent/**/*.py",
    "llm/repoagent_llm/**/*.py",
    "server_stub/repoagent_server/**/*.py",
    "agents/*/repoagent_*/**/*.py",
    "deploy/ray/repoagent_ray/**/*.py",
    "contrib/vllm/repoagent_vllm/*.py",
)


@pytest.mark.slow
def test_no_text_of_an_error_a_log_or_a_flag_has_a_fault(words: dict[str, Any], tree: Path) -> None:
    found = [
        f"{path.relative_to(tree)}:{fault.line}: {fault.text}"
        for place in PRODUCT
        for path in sorted(tree.glob(place))
        for fault in words["text_faults"](path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_texts_are_told_from_docstrings(words: dict[str, Any]) -> None:
    source = '"""It says so."""\nraise ValueError(f"{name} is no number")\nlog("whoever")\nlog("whoever it was")\n'
    found = sorted((fault.line, fault.text) for fault in words["text_faults"](source))
    assert found == [(2, "the word 'is no number'"), (4, "the word 'whoever'")]


def test_the_help_of_a_command_counts_as_a_text(words: dict[str, Any]) -> None:
    source = (
        '@click.command()\ndef rekey() -> None:\n    """Shut somebody out."""\n\ndef other():\n    """It says."""\n'
    )
    assert [fault.text for fault in words["text_faults"](source)] == ["the word 'somebody'"]


UNFINISHED = (
    "llm/repoagent_llm/builder",
    "llm/repoagent_llm/engine",
    "llm/repoagent_llm/runner",
)
"""Folders whose docstrings and comments have ruled out words yet. None may join them."""


@pytest.mark.slow
def test_no_docstring_and_no_comment_has_a_ruled_out_word(words: dict[str, Any], tree: Path) -> None:
    faults: dict[str, list[str]] = {}
    for path in (path for place in PRODUCT for path in sorted(tree.glob(place))):
        name = str(path.relative_to(tree))
        if found := words["note_faults"](path.read_text(encoding="utf-8")):
            folder = next((one for one in UNFINISHED if name.startswith(f"{one}/")), "finished")
            faults.setdefault(folder, []).extend(f"{name}:{fault.line}: {fault.text}" for fault in found)
    assert faults.pop("finished", []) == []
    assert sorted(faults) == list(UNFINISHED)


def test_a_note_is_a_docstring_or_a_comment(words: dict[str, Any]) -> None:
    source = '"""One.\n\nIt says so."""\nname = "whoever it was"  # `says` is code, nobody is not\n'
    assert sorted(words["note_faults"](source)) == [(3, "the word 'says'"), (4, "the word 'nobody'")]


PUBLIC = ("repoagent/api", "repoagent/server", "llm/repoagent_llm/types", "repoagent/testing")


def _docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of the docstrings of a module and of its public classes and functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and not getattr(node, "name", "").startswith(
            "_"
        ):
            text = ast.get_docstring(node)
            if text:
                yield getattr(node, "lineno", 1), text.replace("``", "`")


def test_public_docstrings_have_no_fault(words: dict[str, Any], tree: Path) -> None:
    files = [path for place in PUBLIC for path in (tree / place).rglob("*.py")]
    found = [
        f"{path.relative_to(tree)}:{line + fault.line}: {fault.text}"
        for path in files
        for line, text in _docstrings(path)
        for fault in words["faults"](text)
        if "columns" not in fault.text  # ruff has the limit of lines of code
    ]
    assert found == []
