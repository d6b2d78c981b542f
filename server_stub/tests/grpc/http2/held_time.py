"""Time that passes for the connections of a front end when a test lets it, and not before."""

import asyncio
import heapq
import itertools
import threading
from collections.abc import Callable
from typing import Any

import pytest
from repoagent_server.grpc import frontend
from repoagent_server.grpc.http2.dispatcher import Dispatcher
from repoagent_server.http import frontend as http_frontend
from repoagent_server.shared.connections import Connections


class HeldTime:
    """Stands in the place of the event loop of each front end that starts after this: its clock is the test's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._now = 1000.0
        self._timers: list[tuple[float, int, asyncio.Handle]] = []
        self._numbers = itertools.count()
        self._loop: asyncio.AbstractEventLoop | None = None
        monkeypatch.setattr(frontend, "Dispatcher", lambda loop, *more, **by: Dispatcher(self._over(loop), *more, **by))
        monkeypatch.setattr(http_frontend, "Connections", lambda loop, *more: Connections(self._over(loop), *more))

    def time(self) -> float:
        """As an event loop has it."""
        return self._now

    def call_later(self, seconds: float, act: Callable[..., Any], *given: Any) -> asyncio.Handle:
        """As an event loop has it."""
        assert self._loop is not None
        timer = asyncio.Handle(act, given, self._loop)
        heapq.heappush(self._timers, (self._now + seconds, next(self._numbers), timer))
        return timer

    def pass_(self, seconds: float) -> None:
        """Let so much time pass, and return when all timers have rung that end in it."""
        assert self._loop is not None
        over = threading.Event()
        self._loop.call_soon_threadsafe(self._ring, self._now + seconds, over)
        assert over.wait(60)

    def _ring(self, until: float, over: threading.Event) -> None:
        while self._timers and self._timers[0][0] <= until:
            self._now, _, timer = heapq.heappop(self._timers)
            if not timer.cancelled():
                timer._run()
        self._now = until
        over.set()

    def _over(self, loop: asyncio.AbstractEventLoop) -> Any:
        self._loop = loop
        return self

    def __getattr__(self, name: str) -> Any:
        """All else is the loop's."""
        return getattr(self._loop, name)
