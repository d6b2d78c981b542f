"""Tables in the log."""

from types import SimpleNamespace
from typing import Any

import pytest
from repoagent_server.program import program
from repoagent_server.program.tables import table


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert table(("Model", "Status"), [("m", "READY"), ("long-name", "UNAVAILABLE: why")]) == (
        "\n"
        "+-----------+------------------+\n"
        "| Model     | Status           |\n"
        "+-----------+------------------+\n"
        "| m         | READY            |\n"
        "| long-name | UNAVAILABLE: why |\n"
        "+-----------+------------------+\n"
    )


def test_a_table_may_be_empty() -> None:
    assert table(("A",), []) == "\n+---+\n| A |\n+---+\n+---+\n"


def test_a_cell_stays_on_its_line() -> None:
    assert table(("A",), [("x\ny é",)]).splitlines()[4] == "| x\\ny é |"


def test_a_start_without_any_model_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    nothing: Any = SimpleNamespace(index=list)
    program._show_models(nothing)
    assert "no model repository has a model: a model is a directory with a config.pbtxt" in caplog.text
