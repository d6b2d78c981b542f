"""Time as the schedulers see it, and which of many that wait have waited too long."""

import heapq
import itertools
import threading
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar


class Clock:
    """The clock of the machine. A test may let another one stand still and move it on."""

    def now_ns(self) -> int:
        """The time now; comparable with ``InferRequest.arrival_ns``."""
        return time.monotonic_ns()

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        """Wait until ``condition``, whose lock is held, is notified or it is ``until_ns``; None: forever.

        It may return earlier than that: look again.
        """
        condition.wait(None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9)


T = TypeVar("T")

TOLERATED: Final = 64
"""So many that have left are kept in memory without a thought."""


class Deadlines(Generic[T]):
    """Items by the time at which their waiting is over. Not thread-safe. ``waits`` returns whether one still waits."""

    def __init__(self, waits: Callable[[T], bool]) -> None:
        self._waits = waits
        self._heap: list[tuple[int, int, T]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline_ns: int, item: T, waiting: int) -> None:
        """Take note of ``item``; about ``waiting`` items wait altogether."""
        # Those that have left before their time would be kept in memory, with their requests.
        if len(self._heap) > 2 * waiting + TOLERATED:
            self._heap = [place for place in self._heap if self._waits(place[2])]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (deadline_ns, next(self._numbers), item))

    def over(self, now_ns: int) -> list[T]:
        """Take out the items that still wait and whose time is over."""
        found = []
        while self._heap and self._heap[0][0] <= now_ns:
            item = heapq.heappop(self._heap)[2]
            if self._waits(item):
                found.append(item)
        return found

    @property
    def next_ns(self) -> int | None:
        """When the next item's time is over."""
        while self._heap and not self._waits(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None
