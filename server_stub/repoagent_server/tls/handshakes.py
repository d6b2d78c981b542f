"""Handshakes that have begun: how many, for how long, on which threads; and what can be decrypted after them."""

import asyncio
import contextlib
import enum
import logging
import ssl
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Final, Protocol, cast

logger = logging.getLogger(__name__)

SECONDS: Final = 10.0
"""For one handshake."""


class Outcome(enum.Enum):
    """How far a handshake has come."""

    DONE = enum.auto()
    WAITS = enum.auto()
    """The client's next message is missing."""
    FAILED = enum.auto()


class _Half(Protocol):
    def abort(self) -> None:
        """End it at once."""


class Handshakes:
    """Belongs to one event loop. A handshake that takes too long ends; so does the oldest where there are too many.

    A client that means well is done in a few round trips, so the oldest is the least likely to be one. Signatures are
    computed by ``pool``, one after another: however many handshakes come, open connections are answered meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, most: int, pool: Executor) -> None:
        self._loop = loop
        self._most = most
        self._pool = pool
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

    def step(self, half: _Half, tls: ssl.SSLObject, then: Callable[[Outcome], None]) -> None:
        """Go on with a handshake on a thread, unless it has ended by its turn.

        ``then`` is called on the loop. Until that, ``tls`` and what it reads and writes belong to the thread.
        """

        def hand_back(future: Future[Outcome]) -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed, and with it every connection
                self._loop.call_soon_threadsafe(then, future.result())

        try:
            self._pool.submit(self._shake, half, tls).add_done_callback(hand_back)
        except RuntimeError:  # this machine has no thread left, or the front end has ended
            self._loop.call_soon(then, Outcome.FAILED)

    def _shake(self, half: _Half, tls: ssl.SSLObject) -> Outcome:
        if half not in self._open:
            return Outcome.FAILED
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return Outcome.WAITS
        except (ssl.SSLError, ssl.CertificateError) as error:
            logger.debug("a TLS handshake failed: %s", error)
            return Outcome.FAILED
        return Outcome.DONE


_MOST: Final = 1 << 18
"""Bytes that are handed on at a time."""


def read_all(tls: ssl.SSLObject, incoming: ssl.MemoryBIO) -> tuple[bytes, bool]:
    """All that is there, up to a limit, and whether the client has ended its side.

    Raises:
        ssl.SSLError: the client broke the protocol.
    """
    pieces: list[bytes] = []
    size, ended = 0, False
    try:
        while size < _MOST and (incoming.pending or tls.pending()):
            piece = tls.read(_MOST)
            if not piece:
                ended = True
                break
            pieces.append(piece)
            size += len(piece)
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLZeroReturnError:
        ended = True
    return (pieces[0] if len(pieces) == 1 else b"".join(pieces)), ended


def read_into(tls: ssl.SSLObject, incoming: ssl.MemoryBIO, memory: memoryview) -> tuple[int, bool]:
    """The same into ``memory``: how many bytes it got."""
    size, ended = 0, False
    try:
        while size < len(memory) and (incoming.pending or tls.pending()):
            count = tls.read(len(memory) - size, memory[size:])
            if not count:
                ended = True
                break
            size += cast("int", count)
    except ssl.SSLWantReadError:
        pass
    except ssl.SSLZeroReturnError:
        ended = True
    return size, ended
