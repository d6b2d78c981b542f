import io
import logging
import re
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from repoagent.server import LogFormat, LogLevel, LogMessage, Server
from repoagent.server.logs import ServerLog, log_message, server_log


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ServerLog]:
    """The log of the process, with everything off before and after."""
    found = server_log()
    _reset(found)
    yield found
    _reset(found)


def _reset(log: ServerLog) -> None:
    log.set_callback(None)
    log.set_file(None)
    log.set_format(LogFormat.DEFAULT)
    log.set_verbose(0)
    for level in LogLevel:
        log.enable(level, False)


def test_a_line_has_tritons_form(log: ServerLog, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log.set_file(str(path))
    log.enable(LogLevel.INFO, True)
    log_message(LogLevel.INFO, "filename", 123, "info_message")
    assert re.fullmatch(r'I\d{4} \d\d:\d\d:\d\d\.\d{6} \d+ filename:123\] "info_message"\n', path.read_text())


def test_a_full_disk_is_told_once_on_the_standard_error(log: ServerLog, capsys: pytest.CaptureFixture[str]) -> None:
    log.set_file("/dev/full")
    log.enable(LogLevel.INFO, True)
    for _ in range(3):
        log_message(LogLevel.INFO, "filename", 1, "lost")
    log.set_file(None)
    text = "cannot write to the log file '/dev/full', its lines are lost: No space left on device\n"
    assert capsys.readouterr().err == text


def test_a_stamp_can_be_iso8601(log: ServerLog, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log.set_file(str(path))
    log.set_format(LogFormat.ISO8601)
    log.enable(LogLevel.ERROR, True)
    log_message(LogLevel.ERROR, "filename", 1, "bad")
    assert re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ E \d+ filename:1\] ", path.read_text())


def test_what_is_no_text_is_written_all_the_same(
    log: ServerLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "log"
    log.set_file(str(path))
    log.enable(LogLevel.INFO, True)
    logger = logging.getLogger("repoagent")
    # pytest keeps what it captures, and a process of pytest-xdist cannot send such a character on.
    monkeypatch.setattr(logger, "propagate", False)
    logger.info("name\udcff")
    assert "udcff" in path.read_text()


def test_only_what_is_switched_on_is_written(log: ServerLog, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log.set_file(str(path))
    log.enable(LogLevel.WARN, True)
    for level in LogLevel:
        log_message(level, "f", 1, level.name)
        assert log.enabled(level) is (level is LogLevel.WARN)
    assert re.findall(r'"(\w+)"', path.read_text()) == ["WARN"]
    log.set_verbose(1)
    log_message(LogLevel.VERBOSE, "f", 1, "more")
    assert path.read_text().splitlines()[-1].startswith("V")


def test_a_message_has_the_place_of_its_caller(log: ServerLog, tmp_path: Path) -> None:
    path = tmp_path / "log"
    log.set_file(str(path))
    log.enable(LogLevel.INFO, True)
    LogMessage(LogLevel.INFO, "here")
    line = sys._getframe().f_lineno - 1
    assert f'test_logs.py:{line}] "here"' in path.read_text()


def test_an_empty_name_is_the_standard_error_again(
    log: ServerLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    log.set_file(str(tmp_path / "log"))
    log.set_file("")
    log.enable(LogLevel.ERROR, True)
    try:
        raise ValueError("the reason")
    except ValueError:
        logging.getLogger("repoagent.test").exception("it failed")
    assert "it failed" in stream.getvalue()
    assert "ValueError: the reason" in stream.getvalue()


def test_every_level_of_the_options_brings_those_above_it(log: ServerLog, repository: Path, tmp_path: Path) -> None:
    from repoagent.server import ModelControlMode

    path = tmp_path / "server.log"
    options: dict[str, Any] = {
        "model_control_mode": ModelControlMode.EXPLICIT,
        "startup_models": ["addsub"],
        "log_file": str(path),
    }
    with Server(model_repository=str(repository), log_verbose=1, **options):
        assert all(log.enabled(level) for level in LogLevel)
    assert "successfully loaded 'addsub'" in path.read_text()
    with Server(model_repository=str(repository), log_warn=True, **options):
        assert [log.enabled(level) for level in LogLevel] == [False, True, True, False]
    with Server(model_repository=str(repository), **options):
        assert not any(log.enabled(level) for level in LogLevel)


def test_a_callback_gets_the_records_of_a_server_instead_of_lines(
    log: ServerLog, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    records: list[tuple[Any, ...]] = []
    (tmp_path / "models").mkdir()
    options: dict[str, Any] = {"model_repository": tmp_path / "models", "workspace_directory": str(tmp_path / "work")}
    before = time.time_ns() // 1000
    with Server(**options, log_warn=True, log_callback=lambda *record: records.append(record)):
        log_message(LogLevel.ERROR, "file.py", 7, "bad")
        log_message(LogLevel.INFO, "file.py", 8, "not asked for")
    assert capsys.readouterr().err == ""
    ((level, name, line, stamp, message),) = [record for record in records if record[1] == "file.py"]
    assert (level, name, line, message) == (LogLevel.ERROR, "file.py", 7, "bad")
    assert before <= stamp <= time.time_ns() // 1000
    with Server(**options, log_warn=True):
        log_message(LogLevel.ERROR, "file.py", 9, "a line again")
    assert "a line again" in capsys.readouterr().err
    assert len([record for record in records if record[1] == "file.py"]) == 1


def test_a_callback_that_logs_or_raises_harms_nobody(log: ServerLog, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []

    def callback(level: LogLevel, filename: str, line: int, timestamp_us: int, message: str) -> None:
        seen.append(message)
        log_message(LogLevel.ERROR, "callback", 1, "from inside")
        raise RuntimeError("the callback is broken")

    log.enable(LogLevel.ERROR, True)
    log.set_callback(callback)
    for _ in range(2):
        log_message(LogLevel.ERROR, "file", 1, "one")
    assert seen == ["one", "one"]
    assert "the callback is broken" in capsys.readouterr().err


def test_a_callback_can_wait_for_another_thread_that_logs(log: ServerLog) -> None:
    seen: list[str] = []
    log.enable(LogLevel.ERROR, True)

    def callback(*record: Any) -> None:
        seen.append(record[-1])
        if record[-1] == "outer":
            other = threading.Thread(target=log_message, args=(LogLevel.ERROR, "file", 1, "other"), daemon=True)
            other.start()
            other.join(60)

    log.set_callback(callback)
    log_message(LogLevel.ERROR, "file", 1, "outer")
    assert seen == ["outer", "other"]


def test_a_record_with_a_traceback_has_it_in_its_message(log: ServerLog) -> None:
    seen: list[str] = []
    log.enable(LogLevel.ERROR, True)
    log.set_callback(lambda *record: seen.append(record[-1]))
    try:
        raise ValueError("why")
    except ValueError:
        logging.getLogger("repoagent.test").exception("it failed")
    assert seen[0].startswith("it failed\nTraceback ")
    assert seen[0].endswith("ValueError: why")
