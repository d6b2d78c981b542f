"""Each number of the list of differences has tests, and what differs from a recorded stock server has a number."""

import ast
import importlib
import json
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.warm import Warm

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TESTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("differences.toml").read_text())


def test_every_number_has_a_test_and_no_number_is_made_up(pages: dict[str, Any]) -> None:
    assert sorted(TESTS, key=int) == sorted(_numbers(pages), key=int)


def _numbers(pages: dict[str, Any]) -> set[str]:
    numbers = re.findall(r"^(\d+)\. ", pages["docs/differences.md"].text, re.MULTILINE)
    assert len(numbers) == len(set(numbers))
    return set(numbers)


@pytest.mark.parametrize("number", TESTS)
def test_the_tests_of_a_number_exist(number: str) -> None:
    assert TESTS[number]
    for test in TESTS[number]:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, test


@pytest.fixture(scope="module")
def life_cycles() -> Iterator[ModuleType]:
    """The cases that were recorded of a stock Triton, and what drives a server through them."""
    place = ROOT / "capi" / "tests" / "against_triton"
    with pytest.MonkeyPatch.context() as patched:
        patched.syspath_prepend(str(place))
        yield importlib.import_module("life_cycles")


CASES: dict[str, list[str]] = json.loads((ROOT / "capi/tests/against_triton/life_cycles.json").read_text())["cases"]


def test_every_case_is_recorded(life_cycles: ModuleType) -> None:
    assert [case.name for case in life_cycles.CASES] == list(CASES)


@pytest.mark.parametrize("name", CASES)
def test_what_differs_from_a_stock_server_has_a_number(
    name: str, life_cycles: ModuleType, tmp_path: Path, pages: dict[str, Any], warm: Warm
) -> None:
    """L19: each step of a case is as recorded, or its difference has numbers in the list, and none has without one."""
    (case,) = (case for case in life_cycles.CASES if case.name == name)
    (tmp_path / "agents" / "calls").mkdir(parents=True)
    (tmp_path / "agents" / "calls" / "agent.py").write_text(life_cycles.PYTHON_AGENT)
    command = ["serve", f"--repoagent-directory={tmp_path / 'agents'}", f"--workspace-directory={tmp_path / 'work'}"]
    command += [f"--cache-directory={tmp_path / 'cache'}", "--allow-load-parameters"]
    seen = life_cycles.observe(case, command, os.environ, quiet=0.2, recorded=CASES[name], start=warm.start)
    differing = {step for step, texts in enumerate(zip(CASES[name], seen, strict=True)) if len(set(texts)) > 1}
    assert differing == set(case.differ), [(CASES[name][step], seen[step]) for step in differing ^ set(case.differ)]
    assert {str(number) for numbers in case.differ.values() for number in numbers} <= _numbers(pages)
