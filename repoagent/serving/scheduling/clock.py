"""Time as the schedulers see it, so that a test can let it stand still and move it on."""

import threading
import time
from typing import Protocol

__all__ = ["Clock", "MonotonicClock"]


class Clock(Protocol):
    """Nanoseconds that only go forwards, and a way to wait for some of them."""

    def now_ns(self) -> int:
        """The time now; comparable with ``InferRequest.arrival_ns``."""

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        """Wait until ``condition``, whose lock is held, is notified or it is ``until_ns``; None: forever.

        It may return earlier than that: look again.
        """


class MonotonicClock:
    """The clock of the machine."""

    now_ns = staticmethod(time.monotonic_ns)

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        """See :class:`Clock`."""
        condition.wait(None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9)
