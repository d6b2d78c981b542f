"""A thread that writes what must not wait, and the limits of what it is given."""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Any, Final

from repoagent.audit.actors import Actor
from repoagent.audit.sink import What

__all__ = ["Note", "NoteWriter"]

Note = tuple[str, str, What, Actor]

_PER_SECOND: Final = 100
_WAITING: Final = 1024
_CLOSING_SECONDS: Final = 10.0
_SAY_AFTER: Final = 1.0
"""Seconds between the first note that is left out and the line that counts it, with all that followed."""
_STOP: Final = object()
_SAY: Final = object()


class NoteWriter:
    """Hands items to ``write`` on a thread of its own, which starts with the first one.

    ``None`` is an order that always gets through, as notes that are not limited do. Of the others at most a hundred a
    second do: strangers cause them, and must not fill a disk. What is left out is counted, and a note of its own says
    how much.
    """

    def __init__(self, write: Callable[[Note | None], None]) -> None:
        self._write = write
        self._queue: SimpleQueue[Any] = SimpleQueue()  # its put may be called by a handler of signals
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._left = float(_PER_SECOND)
        self._filled = time.monotonic()
        self._unsaid = 0
        self._due: float | None = None
        self.suppressed = 0
        """How many notes were left out."""

    def start(self) -> None:
        """Start the thread, for those who cannot: a handler of signals."""
        with self._lock:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="repoagent-audit", daemon=True)
                self._thread.start()

    def put(self, item: Note | None, *, limited: bool = True) -> None:
        """Take an item; never waits."""
        if item is None:
            self._queue.put(item)
            return
        self.start()
        with self._lock:
            if self._closed or (limited and not self._admits()):
                self.suppressed += 1
                self._unsaid += 1
                if self._unsaid == 1:
                    self._queue.put(_SAY)
                return
        self._queue.put(item)

    def close(self) -> None:
        """Write what is there, and end the thread."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._queue.put(_STOP)
            thread.join(_CLOSING_SECONDS)

    def _admits(self) -> bool:
        now = time.monotonic()
        self._left = min(_PER_SECOND, self._left + (now - self._filled) * _PER_SECOND)
        self._filled = now
        if self._left < 1 or self._queue.qsize() >= _WAITING:
            return False
        self._left -= 1
        return True

    def _run(self) -> None:
        for item in iter(self._next, _STOP):
            self._write(item)
        self._summarise()

    def _next(self) -> Any:
        """The next item. What was left out meanwhile is counted in time, also if nothing follows it."""
        while True:
            left = None if self._due is None else self._due - time.monotonic()
            try:
                if left is not None and left <= 0:
                    raise Empty
                item = self._queue.get(timeout=left)
            except Empty:
                self._due = None
                self._summarise()
                continue
            if item is not _SAY:
                return item
            self._due = time.monotonic() + _SAY_AFTER

    def _summarise(self) -> None:
        with self._lock:
            unsaid, self._unsaid = self._unsaid, 0
        if unsaid:
            self._write(("audit", "suppressed", {"notes": unsaid}, Actor("operator")))
