"""The queue of the plain schedulers, and the calls that wake their workers up."""

from collections import deque
from collections.abc import Callable
from queue import SimpleQueue

from repoagent.serving.scheduling.steps import Entry

__all__ = ["RequestQueue"]


class RequestQueue:
    """Entries, first come, first served. A worker sleeps until it is called, so that entries can come without a call.

    ``attended`` says whether all entries are going to be taken by somebody else: then calls mean nothing.
    """

    def __init__(self, attended: Callable[[], bool] | None = None) -> None:
        self._attended = attended
        self._entries: deque[Entry] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Add ``entry``; a worker is called unless somebody else is going to take it."""
        self._entries.append(entry)
        if self._attended is None or not self._attended():
            self._calls.put(True)

    def put_back(self, entry: Entry) -> None:
        """Have an entry that was taken be the first one again. Nobody is called for it."""
        self._entries.appendleft(entry)

    def call(self) -> None:
        """Wake a worker up: there is something for it."""
        self._calls.put(True)

    def dismiss(self) -> None:
        """Have one :meth:`wait` return None."""
        self._calls.put(False)

    @property
    def first(self) -> Entry | None:
        """What :meth:`take` would return."""
        try:
            return self._entries[0]
        except IndexError:
            return None

    def take(self) -> Entry | None:
        """The first entry; None if there is none."""
        try:
            return self._entries.popleft()
        except IndexError:
            return None

    def wait(self) -> Entry | None:
        """Wait to be called, and take the first entry; None to end."""
        while self._calls.get():
            entry = None if self._attended is not None and self._attended() else self.take()
            if entry is not None:
                if self._entries and self._calls.empty():
                    self._calls.put(True)  # One call may have stood for all of them.
                return entry
        return None
