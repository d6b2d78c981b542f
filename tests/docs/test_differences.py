"""Each number of the list of differences has tests, and those exist."""

import ast
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TESTS: dict[str, list[str]] = tomllib.loads(Path(__file__).with_name("differences.toml").read_text())


def test_every_number_has_a_test_and_no_number_is_made_up(pages: dict[str, Any]) -> None:
    numbers = re.findall(r"^(\d+)\. ", pages["docs/differences.md"].text, re.MULTILINE)
    assert len(numbers) == len(set(numbers))
    assert sorted(TESTS, key=int) == sorted(numbers, key=int)


@pytest.mark.parametrize("number", TESTS)
def test_the_tests_of_a_number_exist(number: str) -> None:
    assert TESTS[number]
    for test in TESTS[number]:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        functions = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
        assert name in functions, test
