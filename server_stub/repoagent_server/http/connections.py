"""The open connections of one front end, and when answers are written to them."""

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final, Protocol

from repoagent_server.shared.in_flight import InFlight

__all__ = ["FLUSH_SECONDS", "Connection", "Connections"]

FLUSH_SECONDS: Final = 2.0
"""How long what has been written may take to get out when a front end stops."""
_FLUSH_AT: Final = 64


class Connection(Protocol):
    """One of them."""

    def flush(self) -> None:
        """Write the answers that are ready."""

    def close(self) -> None:
        """End it after what is already written to it."""

    def abort(self) -> None:
        """End it at once."""

    def untried(self, since: float) -> bool:
        """Whether it was opened after ``since``, by the loop's clock, and has brought nothing yet."""

    def close_if_stalled(self) -> None:
        """End it if it began a request and has brought nothing of it for a while."""


class Connections:
    """Belongs to one event loop.

    Answers are written when all requests that came together have been handled, not one by one: the first write wakes
    the client's process up, which may cost more than a small model, and the others then find it awake.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._open: set[Connection] = set()
        self._closing = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._sweep: asyncio.TimerHandle | None = None
        self._unwritten: list[Connection] = []
        self._untried: set[Connection] = set()
        self._tried = asyncio.Event()
        self.in_flight = InFlight()

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    def opened(self, connection: Connection) -> None:
        if self._untried:
            self._untried.add(connection)  # a handshake has just ended: its first request has the same time
        elif self._closing:
            connection.close()
        self._open.add(connection)
        self._empty.clear()
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._stall_seconds, self._close_stalled)

    def lost(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._empty.set()
        if self._untried:
            self._untried.discard(connection)
            if not self._untried:
                self._tried.set()

    def write_soon(self, connection: Connection) -> None:
        """Have ``connection.flush`` called once the loop has handled what it has received so far."""
        unwritten = self._unwritten
        unwritten.append(connection)
        if len(unwritten) == 1:
            self._loop.call_soon(self._write)
        elif len(unwritten) == _FLUSH_AT:
            self._write()

    def _write(self) -> None:
        unwritten, self._unwritten = self._unwritten, []
        for connection in unwritten:
            connection.flush()

    async def empty(self) -> None:
        """Return once every connection is closed."""
        await self._empty.wait()

    async def close_all(self, seconds: float) -> None:
        """End every connection, after what is already written to it, and those that still come.

        One that is younger than ``seconds`` and has brought nothing yet has as long for its first request: the client
        may have sent it already. It is refused like every other by now, but answered; a connection that ended
        unanswered would look like a server that died.
        """
        self._closing = True
        if self._sweep is not None:
            self._sweep.cancel()
        since = self._loop.time() - seconds
        self._untried = {connection for connection in self._open if connection.untried(since)}
        for connection in self._open - self._untried:
            connection.close()
        if self._untried:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._tried.wait(), seconds)
        for connection in list(self._open):
            connection.close()

    async def flushed(self) -> None:
        """Return when every connection is closed: after what has been written to it, or after ``FLUSH_SECONDS``.

        A client that does not read cannot hold the end up for longer.
        """
        try:
            await asyncio.wait_for(self.empty(), FLUSH_SECONDS)
        except TimeoutError:
            for connection in list(self._open):
                connection.abort()
            await self.empty()

    def _close_stalled(self) -> None:
        """End connections that began a request and then sent nothing for a while; idle ones may stay."""
        for connection in list(self._open):
            connection.close_if_stalled()
        again = self._open and not self._loop.is_closed()
        self._sweep = self._loop.call_later(self._stall_seconds, self._close_stalled) if again else None
