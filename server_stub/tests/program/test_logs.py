"""Log lines in Triton's form."""

import json
import logging
import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from repoagent_server.program import program
from repoagent_server.program.logs import configure, table
from repoagent_server.program.options import LogOptions

from repoagent.server.enums import LogFormat
from repoagent.server.logs import TritonFormatter


def _record(level: int, message: str) -> logging.LogRecord:
    record = logging.LogRecord("repoagent.x", level, "/a/b/model.py", 7, message, None, None)
    record.created = time.mktime((2026, 11, 21, 10, 0, 1, 0, 0, -1)) + 0.25
    return record


@pytest.mark.parametrize(
    ("level", "letter"), [(logging.INFO, "I"), (logging.WARNING, "W"), (logging.ERROR, "E"), (logging.DEBUG, "V")]
)
def test_a_line_begins_with_level_date_time_process_and_place(level: int, letter: str) -> None:
    line = TritonFormatter().format(_record(level, "hello"))
    assert re.fullmatch(rf'{letter}1121 10:00:01\.250000 \d+ model\.py:7\] "hello"', line)


def test_dates_can_be_iso8601() -> None:
    line = TritonFormatter(LogFormat.ISO8601).format(_record(logging.INFO, "hello"))
    assert re.fullmatch(r'2026-11-2\dT\d\d:\d\d:01Z I \d+ model\.py:7\] "hello"', line)


def test_lines_can_be_json(tmp_path: Path) -> None:
    with configure(LogOptions(file=tmp_path / "log", format="json")):
        logging.getLogger("repoagent.test").info("hello")
    entry = json.loads((tmp_path / "log").read_text())
    assert (entry["level"], entry["logger"], entry["message"]) == ("INFO", "repoagent.test", "hello")


def test_a_table_is_not_quoted() -> None:
    record = _record(logging.INFO, "\n+--+\n")
    record.table = True
    assert TritonFormatter().format(record).endswith("] \n+--+\n")


@pytest.mark.parametrize("message", ["x\nE1121 10:00:00.000000 1 fake.py:1] y", "\n+--+", 'a "quoted" \\ name é'])
def test_no_message_can_look_like_further_lines(message: str) -> None:
    line = TritonFormatter().format(_record(logging.ERROR, message))
    assert line.count("\n") == 0
    assert json.loads(line.partition("] ")[2]) == message


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        ({}, ["info", "warning", "error"]),
        ({"verbose": 1}, ["debug", "info", "warning", "error"]),
        ({"info": False, "warning": False}, ["error"]),
        ({"error": False}, ["info", "warning"]),
    ],
)
def test_levels_are_chosen_one_by_one(tmp_path: Path, options: dict[str, int], kept: list[str]) -> None:
    file = tmp_path / "log"
    logger = logging.getLogger("repoagent.test")
    with configure(LogOptions(file=file, **options)):  # type: ignore[arg-type]
        for name in ("debug", "info", "warning", "error"):
            getattr(logger, name)(name)
    logger.error("after the block")
    assert re.findall(r'"(.*)"', file.read_text()) == kept


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
