"""Handshakes that have begun: how many there may be, and for how long."""

import asyncio
from typing import Final, Protocol

__all__ = ["SECONDS", "Handshakes"]

SECONDS: Final = 10.0
"""For one handshake."""


class _Half(Protocol):
    def abort(self) -> None:
        """End it at once."""


class Handshakes:
    """Belongs to one event loop. A handshake that takes too long ends; so does the oldest where there are too many.

    A client that means well is done in a few round trips, so the oldest is the least likely to be one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int) -> None:
        self._loop = loop
        self._most = most
        self._seconds = SECONDS
        self._open: dict[_Half, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, half: _Half) -> None:
        """One more."""
        if len(self._open) >= self._most:
            oldest = next(iter(self._open))
            self.end(oldest)
            oldest.abort()
        self._open[half] = self._loop.call_later(self._seconds, half.abort)

    def end(self, half: _Half) -> None:
        """It is over, well or not. Twice is once."""
        timer = self._open.pop(half, None)
        if timer is not None:
            timer.cancel()
