"""The line that shows how far loads are."""

import io
import os
import sys
from typing import Any

import pytest

from repoagent.cli.progress import ERASE, ProgressLine, progress_line
from repoagent.loader.load_context import Progress


@pytest.fixture
def stream() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def line(stream: io.StringIO) -> ProgressLine:
    return ProgressLine(stream, 80)


def _progress(model: str = "m", done: int = 1, total: int | None = 4, what: str = "files") -> Progress:
    return Progress(model, "checksum", done, total, what)


def test_a_share_is_a_bar_and_an_unknown_total_a_number(line: ProgressLine, stream: io.StringIO) -> None:
    line.show(_progress())
    line.show(_progress(done=7, total=None))
    assert stream.getvalue().split(ERASE) == [
        "",
        "[#####---------------]  25%  m: checksum files",
        "m: checksum files 7",
    ]


def test_bytes_come_with_their_rate_and_the_time_that_is_left(
    line: ProgressLine, stream: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """U14: there were no bytes, no rate and no time left."""
    clock = iter([0.0, 0.0, 2.0, 2.0, 2.0, 2.0])
    monkeypatch.setattr("repoagent.cli.progress.time.monotonic", lambda: next(clock))
    for done in (100_000_000, 1_300_000_000):
        line.show(Progress("m", "decrypt", done, 4_100_000_000, ""))
    assert [text.partition("m: ")[2] for text in stream.getvalue().split(ERASE)[1:]] == [
        "decrypt 0.1 of 4.1 GB",
        "decrypt 1.3 of 4.1 GB  600.0 MB/s  5 s left",
    ]


def test_a_download_of_unknown_size_shows_its_bytes(line: ProgressLine, stream: io.StringIO) -> None:
    line.show(Progress("m", "", 1_500, None, ""))
    assert stream.getvalue() == ERASE + "m: download 1.5 kB"


def test_of_several_loads_the_first_is_shown_until_it_ends(line: ProgressLine, stream: io.StringIO) -> None:
    line.show(_progress("a"))
    line.show(_progress("b", done=2))
    assert stream.getvalue().endswith(" 25%  a: checksum files  (+1 more)")
    line.finished("a")
    assert stream.getvalue().endswith(" 50%  b: checksum files")
    line.finished("b")
    line.finished("b")
    assert stream.getvalue().count(ERASE) == 4
    assert stream.getvalue().endswith(ERASE)


def test_what_others_write_stands_alone_and_the_line_comes_back(line: ProgressLine, stream: io.StringIO) -> None:
    with line.hidden():
        stream.write("before\n")
    assert stream.getvalue() == "before\n"
    line.show(_progress())
    shown = stream.getvalue()
    with line.hidden():
        stream.write("said\n")
    bar = shown.removeprefix("before\n")
    assert stream.getvalue() == shown + ERASE + "said\n" + bar
    line.clear()
    assert stream.getvalue().endswith(ERASE)


@pytest.mark.parametrize(("done", "share"), [(9, "100%"), (-1, "  0%"), (4, "100%")])
def test_a_share_stays_between_nothing_and_all(line: ProgressLine, stream: io.StringIO, done: int, share: str) -> None:
    line.show(_progress(done=done))
    assert f"] {share}  " in stream.getvalue()


def test_the_line_never_wraps_and_what_an_agent_says_moves_no_cursor(stream: io.StringIO) -> None:
    line = ProgressLine(stream, 40)
    line.show(_progress(what="a\x1b[2J\nb" + "c" * 100))
    text = stream.getvalue().removeprefix(ERASE)
    assert len(text) == 39
    assert text.isprintable()


def test_there_is_a_line_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert progress_line() is None
    master, slave = os.openpty()
    with os.fdopen(slave, "w") as terminal, os.fdopen(master, "rb", buffering=0) as screen:
        monkeypatch.setattr(sys, "stderr", terminal)
        line: Any = progress_line()
        line.show(_progress())
        assert b"25%" in screen.read(200)
