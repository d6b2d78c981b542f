"""The request log by itself: its lines, what hostile texts become, full disks, pipes that no one reads, rotation."""

import json
import os
import resource
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

import pytest
from repoagent_server.shared import request_log
from repoagent_server.shared.request_log import Entry, RequestLog

from repoagent.errors import UnavailableError

HOSTILE: Final = (
    'm"}\n{"client":"root"',
    "\r\n\x00\x1b[2J\x7f\x9b\u2028\u202e",
    "caf\u00e9 \U0001f600",
    "lone \udc80",
    "\\",
    "x" * 100_000,
)


def entry(**more: Any) -> Entry:
    fields: dict[str, Any] = {
        "began_ns": 1_700_000_000_123_456_789,
        "took_ns": 1_234_567,
        "client": "ann",
        "model": "m",
        "version": "1",
        "protocol": "http",
        "status": 200,
        "bytes_in": 10,
        "bytes_out": 20,
        "request": "r",
    }
    return Entry(**fields | more)


class Noting(RequestLog):
    """One that shows when its thread has written."""

    def __init__(self, path: Path) -> None:
        self._drained = threading.Semaphore(0)
        super().__init__(path)

    def _drain(self) -> None:
        super()._drain()
        self._drained.release()

    def wait(self, *, lines: int = 0, dropped: int = 0) -> None:
        """Return once there are so many."""
        while self.lines < lines or self.dropped < dropped:
            assert self._drained.acquire(timeout=60)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "requests.log"


@pytest.fixture
def new_log(path: Path) -> Iterator[Callable[[], RequestLog]]:
    with ExitStack() as stack:

        def make(where: Path = path) -> RequestLog:
            log = RequestLog(where)
            stack.callback(log.close)
            return log

        yield make


def test_a_line_has_what_the_page_states(path: Path, new_log: Callable[[], RequestLog]) -> None:
    log = new_log()
    log.put(entry())
    log.close()
    assert path.read_text() == (
        '{"time":"2023-11-14T22:13:20.123Z","client":"ann","model":"m","version":"1","protocol":"http","status":200,'
        '"milliseconds":1.235,"bytes_in":10,"bytes_out":20,"request":"r"}\n'
    )
    assert path.stat().st_mode & 0o777 == 0o600


def test_tokens_are_there_where_they_are_known(path: Path, new_log: Callable[[], RequestLog]) -> None:
    log = new_log()
    log.put(entry(tokens=(3, 40)))
    log.close()
    assert path.read_text().endswith(',"request":"r","tokens_in":3,"tokens_out":40}\n')


@pytest.mark.parametrize("text", HOSTILE)
def test_no_text_breaks_out_of_its_line_or_reaches_a_terminal(
    path: Path, new_log: Callable[[], RequestLog], text: str
) -> None:
    log = new_log()
    log.put(entry(client=text, model=text, version=text, request=text))
    log.close()
    (line,) = path.read_bytes().splitlines()
    assert all(32 <= byte < 127 for byte in line)
    assert len(line) < 10_000
    fields = json.loads(line)
    expected = text if len(text) < 512 else text[:512] + "... (100000 characters)"
    assert [fields[name] for name in ("client", "model", "version", "request")] == [expected] * 4
    assert fields["status"] == 200


def test_entries_of_many_threads_are_all_there(path: Path, new_log: Callable[[], RequestLog]) -> None:
    log = new_log()
    start = threading.Barrier(32)

    def put(number: int) -> None:
        start.wait()
        for turn in range(100):
            log.put(entry(model=str(number), version=str(turn)))

    threads = [threading.Thread(target=put, args=(number,)) for number in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(found) == log.lines == 3200
    assert log.dropped == 0
    for number in range(32):
        assert [one["version"] for one in found if one["model"] == str(number)] == list(map(str, range(100)))


def test_a_full_disk_costs_lines_which_are_counted_and_no_line_is_cut(
    path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = Noting(path)
    log.put(entry())
    log.wait(lines=1)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 50, hard))
    try:
        log.put(entry())
        log.wait(dropped=1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)
    log.put(entry(model="after"))
    log.close()
    first, _torn, last = path.read_text().splitlines()
    assert json.loads(first)["model"] == "m"
    assert json.loads(last)["model"] == "after"
    assert "cannot be written: File too large" in caplog.text


def test_what_takes_no_lines_stops_no_one(
    tmp_path: Path, new_log: Callable[..., RequestLog], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "_WAITING", 1000)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = new_log(pipe)
        for _ in range(20_000):
            log.put(entry())
        log.close()
        assert log.lines + log.dropped == 20_000
        assert log.dropped > 0
    finally:
        os.close(reader)


def test_a_pipe_without_a_reader_is_an_error_at_the_start(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnavailableError, match="cannot be opened"):
        RequestLog(tmp_path / "pipe")


def test_a_renamed_file_is_followed_by_a_new_one(path: Path) -> None:
    log = Noting(path)
    log.put(entry(model="a"))
    log.wait(lines=1)
    path.rename(path.with_name("former"))
    log.reopen()
    log.put(entry(model="b"))
    log.close()
    assert json.loads(path.read_text())["model"] == "b"
    assert json.loads(path.with_name("former").read_text())["model"] == "a"


@pytest.mark.parametrize("whole", [True, False], ids=["directory", "file"])
def test_a_removed_file_is_followed_by_a_new_one(tmp_path: Path, caplog: pytest.LogCaptureFixture, whole: bool) -> None:
    path = tmp_path / "logs" / "requests"
    path.parent.mkdir()
    log = Noting(path)
    log.put(entry(model="a"))
    log.wait(lines=1)
    if whole:
        shutil.rmtree(path.parent)
    else:
        path.unlink()
    log.put(entry(model="b"))
    log.close()
    assert json.loads(path.read_text())["model"] == "b"
    assert (log.lines, log.dropped, len(caplog.messages)) == (2, 0, 1)


def test_after_the_end_entries_are_counted_as_dropped(path: Path, new_log: Callable[[], RequestLog]) -> None:
    log = new_log()
    log.close()
    log.put(entry())
    assert (log.lines, log.dropped) == (0, 1)
    log.close()


def test_the_standard_error_stays_open(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    log = RequestLog(None)
    log.put(entry())
    log.close()
    os.write(sys.__stderr__.fileno(), b"")  # type: ignore[union-attr]  # a test has one
