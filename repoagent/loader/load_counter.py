"""Letting loads in until the end, and waiting for those that are in."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from repoagent.errors import UnavailableError

__all__ = ["LoadCounter"]


class LoadCounter:
    """Counts the loads that run. After :meth:`close` none is let in; others see :attr:`closed` and hurry."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the end has begun."""
        return self._closed

    @contextmanager
    def enter(self) -> Iterator[None]:
        """One load, from here to the end of the block.

        Raises:
            UnavailableError: no more are let in.
        """
        with self._changed:
            if self._closed:
                raise UnavailableError("no model can be loaded any more: the loader is closed")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self, timeout: float | None) -> int:
        """Let no one in any more, wait for those inside, and return how many were left after ``timeout`` seconds."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._running == 0, timeout)
            return self._running
