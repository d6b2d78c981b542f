"""What one front end has open: connections and the requests on them; how answers are written to sockets."""

import asyncio
import contextlib
import resource
import sys
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from threading import Lock
from typing import Any, Final, Protocol
from weakref import WeakSet


class InFlight:
    """Belongs to one event loop."""

    def __init__(self) -> None:
        self._count = 0
        self.begun = 0
        """How many there have been."""
        self._idle: asyncio.Event | None = None

    def started(self) -> None:
        """A request is being answered."""
        self._count += 1
        self.begun += 1

    def finished(self) -> None:
        """Its response has been given, whether or not the client was still there."""
        self._count -= 1
        if self._idle is not None and self._count == 0:
            self._idle.set()

    async def idle(self, timeout: float) -> bool:
        """Return once no request is being answered; False if ``timeout`` seconds are up before."""
        if self._count == 0:
            return True
        self._idle = asyncio.Event()
        try:
            await asyncio.wait_for(self._idle.wait(), timeout)
        except TimeoutError:
            return False
        return True


JOIN_BELOW: Final = 1 << 16
"""Bytes. More than that is not copied once more."""


def write_pieces(transport: asyncio.WriteTransport, pieces: Sequence[bytes | bytearray | memoryview]) -> int:
    """Write ``pieces``, at least one, in their order; how many bytes they are."""
    if len(pieces) == 1:
        transport.write(pieces[0])
        return len(pieces[0])
    size = sum(map(len, pieces))
    if size < JOIN_BELOW:
        transport.write(b"".join(pieces))
    else:
        transport.writelines(pieces)
    return size


_LOCAL = "unix"


def address_of(transport: asyncio.BaseTransport) -> str:
    """``10.0.0.7:51234``, ``[::1]:51234``, or ``unix``; empty if the connection is gone already."""
    return shown(transport.get_extra_info("peername"))


def shown(peer: Any) -> str:
    """The same for what the system, or ASGI, calls the other end: host and port, and more for IPv6."""
    if isinstance(peer, str | bytes):
        return _LOCAL
    if not peer:
        return ""
    host, port = str(peer[0]), peer[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


FLUSH_SECONDS: Final = 2.0
"""How long what has been written may take to get out when a front end stops."""
_FLUSH_AT: Final = 64
_RESERVE_SHARE: Final = 4
_RESERVE: Final = 1024
"""Descriptors for what is no connection, at most; half of them in any case."""
_AT_ONCE: Final = 8
_BACKLOG_SHARE: Final = 32
_BACKLOG: Final = 2048
_KEPT: Final = 16
"""Connections that every port may have, however many the others have."""
_GOODBYE_SECONDS: Final = 1.0


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
        """End it if it began a request, or is to bring its first one, and has brought nothing of it for a while."""

    def progress(self) -> float | None:
        """Grows with what the client sends and reads; None while a request of it is worked on, or the end under way."""


def _descriptors() -> int:
    """How many this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return sys.maxsize if soft == resource.RLIM_INFINITY else soft


def backlog() -> int:
    """How many connections may wait to be accepted: the loop takes all of them before it can make room for them."""
    return max(1, min(_BACKLOG, _descriptors() // _BACKLOG_SHARE))


_ports: Final[WeakSet["Connections"]] = WeakSet()
_counting: Final = Lock()


class Connections:
    """Belongs to one event loop.

    Answers are written when all requests that came together have been handled, not one by one. The first write wakes
    the client's process up, which may cost more than a small model; the others then find it awake.

    Connections are as many as the process may have descriptors, less a part. Then a new one ends an older one: of the
    port that has the most, the one that has been silent for longest.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, stall_seconds: float) -> None:
        self._loop = loop
        self._stall_seconds = stall_seconds
        self._open: OrderedDict[Connection, float] = OrderedDict()
        """Each with its progress when it was last looked at; those that were looked at longest ago come first."""
        descriptors = _descriptors()
        reserve = min(_RESERVE, descriptors // _RESERVE_SHARE)
        self._crowded = descriptors - reserve
        self._full = descriptors - reserve // 2
        self._closing = False
        self._empty = asyncio.Event()
        self._empty.set()
        self._sweep: asyncio.TimerHandle | None = None
        self._unwritten: list[Connection] = []
        self._untried: set[Connection] = set()
        self._tried = asyncio.Event()
        self.in_flight = InFlight()
        with _counting:
            _ports.add(self)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Connection]:
        return iter(list(self._open))

    def opened(self, connection: Connection, transport: asyncio.BaseTransport) -> None:
        if self._untried:
            self._untried.add(connection)  # a handshake has just ended: its first request has the same time
        elif self._closing:
            connection.close()
        self._open[connection] = -1.0
        self._empty.clear()
        if self._sweep is None:
            self._sweep = self._loop.call_later(self._stall_seconds, self._close_stalled)
        own = transport.get_extra_info("socket")
        number = own.fileno() if own is not None else 0
        with _counting:
            total = sum(map(len, _ports))
        if max(number, total) >= self._crowded:  # the system gives the lowest number that is free
            self._make_room(min(max(1, number - self._crowded), _AT_ONCE))
            if number >= self._full and len(self._open) > _KEPT:
                connection.abort()
        elif total >= self._crowded // 2:  # who asks now and then is known by the time that there is no room
            self._silent()
            self._silent()

    def _make_room(self, count: int) -> None:
        with _counting:
            largest = max(_ports, key=len)
        if largest is self:
            self._end_silent(count)
        else:
            with contextlib.suppress(RuntimeError):  # its front end has ended
                largest._loop.call_soon_threadsafe(largest._end_silent, count)

    def _end_silent(self, count: int) -> None:
        """End the first ``count`` that have been silent since the last look."""
        for _ in range(2 * len(self._open)):
            silent = self._silent()
            if silent is not None:
                silent.close()
                self._loop.call_later(_GOODBYE_SECONDS, silent.abort)
                count -= 1
            if not count:
                return

    def _silent(self) -> Connection | None:
        """Look at the next one; it, if it has been silent since it was looked at last, with all others in between."""
        connection, seen = next(iter(self._open.items()))
        self._open.move_to_end(connection)
        progress = connection.progress()
        if progress is None:
            return None
        self._open[connection] = progress
        return connection if progress == seen else None

    async def gone(self, timeout: float) -> None:
        """Return once none is open, at the latest after ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), timeout)

    def lost(self, connection: Connection) -> None:
        self._open.pop(connection, None)
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
        for connection in self._open.keys() - self._untried:
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
        """End connections that owe something and sent nothing for a while; others may stay."""
        for connection in list(self._open):
            connection.close_if_stalled()
        again = self._open and not self._loop.is_closed()
        self._sweep = self._loop.call_later(self._stall_seconds, self._close_stalled) if again else None


def come_round(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    """Return once ``loop``, which runs on ``thread``, has done what waited there; or has ended."""
    done = threading.Event()
    with contextlib.suppress(RuntimeError):  # It is closed.
        loop.call_soon_threadsafe(done.set)
    while thread.is_alive() and not done.wait(1.0):
        pass
