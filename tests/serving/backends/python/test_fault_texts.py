"""An exception in a model's code has file and line, as Triton gives them, and no path of the server."""

from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import InternalError

pytestmark = pytest.mark.slow


def test_a_model_that_cannot_start_has_file_line_and_function_of_every_frame(run_anywhere: Any, tmp_path: Path) -> None:
    body = """
def helper():
    raise NameError("no such thing")

class TritonPythonModel:
    def initialize(self, args):
        helper()

    def execute(self, requests):
        pass
"""
    with pytest.raises(InternalError) as caught:
        run_anywhere(body)
    text = str(caught.value)
    frames = [line.strip() for line in text.partition("\n\nAt:\n")[2].splitlines()]
    assert [frame.partition("(")[0] for frame in frames] == ["1/model.py"] * 2
    assert [frame.rpartition(": ")[2] for frame in frames] == ["helper", "initialize"]
    assert "NameError: no such thing" in text
    assert str(tmp_path) not in text


def test_an_execute_that_raises_has_them_too(run_anywhere: Any, tmp_path: Path) -> None:
    body = """
import json
class TritonPythonModel:
    def execute(self, requests):
        json.loads("{")
"""
    text = run_anywhere(body).error()
    assert "JSONDecodeError: " in text
    assert text.partition("\n\nAt:\n")[2].startswith("  1/model.py(")
    assert text.endswith("): execute\n")
    assert str(tmp_path) not in text
    assert "json/" not in text


def test_a_file_that_cannot_be_run_has_them_too(run_anywhere: Any) -> None:
    with pytest.raises(InternalError, match=r"ZeroDivisionError: .*\n\nAt:\n  1/model\.py\(\d+\): <module>\n"):
        run_anywhere("1 / 0\n")
