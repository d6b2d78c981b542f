"""Waiting for the end of an authorization."""

import threading
from collections.abc import Callable
from datetime import datetime
from typing import Final

__all__ = ["Watch"]

_LONGEST_WAIT: Final = 30.0
"""Seconds after which the clock is looked at again: somebody may have set it, or the machine may have slept."""


class Watch:
    """Calls ``at_end`` once, on a thread of its own, when ``clock`` reaches ``until``; never after :meth:`stop`."""

    def __init__(self, until: datetime, at_end: Callable[[], None], *, clock: Callable[[], datetime]) -> None:
        self._until = until
        self._at_end = at_end
        self._clock = clock
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._wait, name="license-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait no more, and return when the thread has ended; again is fine."""
        self._stopped.set()
        self._thread.join()

    def _wait(self) -> None:
        while (left := (self._until - self._clock()).total_seconds()) > 0:
            if self._stopped.wait(min(left, _LONGEST_WAIT)):
                return
        if not self._stopped.is_set():
            self._at_end()
