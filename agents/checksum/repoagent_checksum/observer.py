"""How long work tells how far it is, and learns that nobody waits for it any more."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

from repoagent.api import CancelledError

__all__ = ["Meter", "Observer"]


def _never() -> bool:
    return False


def _ignore(_done: int, _total: int) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Observer:
    """``cancelled`` is asked, ``progress(done, total)`` is told, both between two buffers and never at once."""

    cancelled: Callable[[], bool] = _never
    progress: Callable[[int, int], None] = _ignore


class Meter:
    """Counts the bytes that several threads have done, and stops them all when one failed or nobody waits."""

    def __init__(self, observer: Observer, total: int) -> None:
        self._observer = observer
        self._total = total
        self._done = 0
        self._stopped = False
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """``count`` more bytes are done.

        Raises:
            CancelledError: stop working.
        """
        with self._lock:
            self._done += count
            if self._stopped or self._observer.cancelled():
                self._stopped = True
                raise CancelledError("the checksums were not finished: the load was cancelled")
            self._observer.progress(self._done, self._total)

    def stop(self) -> None:
        """Make the next ``add`` of every thread raise."""
        with self._lock:
            self._stopped = True
