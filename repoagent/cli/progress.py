"""The last line of a terminal, which shows how far loads are while a person is looking."""

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, TextIO

from repoagent.api.report import amount_text, size_text

if TYPE_CHECKING:
    from repoagent.loader.load_context import Progress

ERASE: Final = "\r\x1b[K"
"""What takes the line away: to the first column, and clear to the end."""

_BAR: Final = 20
_RATE_SECONDS: Final = 0.5


class ProgressLine:
    """Shows the load that has been shown for longest, and how many more there are.

    It is the last thing on the terminal: other writers do it inside :meth:`hidden`. Every method may be
    called from any thread. ``columns`` is the width of the terminal; a longer line would not go away again.
    """

    def __init__(self, stream: TextIO, columns: int) -> None:
        self._stream = stream
        self._columns = columns
        self._lock = threading.RLock()
        self._loads: dict[str, Progress] = {}
        self._began: dict[tuple[str, str, str], tuple[float, int]] = {}
        """When the present work of a model was first seen, and how far it was then: what its rate is counted from."""
        self._drawn = False

    def show(self, progress: "Progress") -> None:
        """A load has got this far."""
        with self._lock:
            self._loads[progress.model] = progress
            self._began.setdefault(_work(progress), (time.monotonic(), progress.done))
            self._draw()

    def finished(self, model: str) -> None:
        """There is nothing more to show of ``model``."""
        with self._lock:
            if self._loads.pop(model, None) is not None:
                self._began = {work: began for work, began in self._began.items() if work[0] != model}
                self._draw()

    def clear(self) -> None:
        """Forget every load."""
        with self._lock:
            self._loads.clear()
            self._began.clear()
            self._draw()

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """The line is away inside the block, and comes back after it if there is something to show."""
        with self._lock:
            self._erase()
            try:
                yield
            finally:
                self._draw()

    def _erase(self) -> None:
        if self._drawn:
            self._write(ERASE)
            self._drawn = False

    def _draw(self) -> None:
        if not self._loads:
            self._erase()
            return
        first, *others = self._loads.values()
        text = _line(first, *self._began[_work(first)])
        text += f"  (+{len(others)} more)" if others else ""
        # The last column stays free: many terminals go to the next line when it is written.
        self._write(ERASE + text[: self._columns - 1])
        self._drawn = True

    def _write(self, text: str) -> None:
        self._stream.write(text)
        self._stream.flush()


def progress_line() -> ProgressLine | None:
    """One on the standard error; None where that is no terminal, and so no one is looking."""
    if sys.stderr is None or not sys.stderr.isatty():
        return None
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = 0
    return ProgressLine(sys.stderr, columns or 80)


@contextmanager
def shown_progress() -> "Iterator[Callable[[Progress], None] | None]":
    """What shows how far loads are, for a block; None where no one is looking."""
    line = progress_line()
    try:
        yield line.show if line else None
    finally:
        if line:
            line.clear()


def _work(progress: "Progress") -> tuple[str, str, str]:
    return progress.model, progress.agent, progress.what


def _line(progress: "Progress", began: float, from_: int) -> str:
    who = _printable(progress.agent or "download")
    what = _amounts(progress, began, from_) if not progress.what else _printable(progress.what)
    if not progress.total:
        return f"{progress.model}: {who} {what}{f' {progress.done}' if progress.what else ''}"
    share = min(max(progress.done / progress.total, 0.0), 1.0)
    bar = "#" * int(share * _BAR)
    return f"[{bar:-<{_BAR}}] {share:4.0%}  {progress.model}: {who} {what}"


def _amounts(progress: "Progress", began: float, from_: int) -> str:
    """``1.2 of 4.1 GB  812 MB/s  3 s left``; the last two once there is a rate to speak of."""
    text = amount_text(progress.done, progress.total)
    seconds, moved = time.monotonic() - began, progress.done - from_
    if seconds < _RATE_SECONDS or moved <= 0:
        return text
    text += f"  {size_text(int(moved / seconds))}/s"
    left = (progress.total or 0) - progress.done
    return f"{text}  {math.ceil(left * seconds / moved)} s left" if left > 0 else text


def _printable(text: str) -> str:
    """Agents describe what they do in their own words, perhaps with the name of a file: it must not move the cursor."""
    return "".join(character if character.isprintable() else "?" for character in text)
