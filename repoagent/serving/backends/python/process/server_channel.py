"""The server's side of a process's two channels: sending never waits, and work goes one exchange at a time."""

import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

from repoagent.serving.backends.python.process.channel import (
    DONT_WAIT,
    Channel,
    Kind,
    Message,
    PeerGoneError,
    UndeliveredError,
)
from repoagent.serving.backends.python.process.codec import Packer
from repoagent.serving.backends.python.process.memory import Arena, Mapping

_ENTRY_BYTES: Final = 256


class ServerChannel(Channel):
    """A channel whose ``send`` never waits for the other side: what does not fit is sent by :meth:`flush`.

    ``on_backlog`` is called when there is something to flush, ``on_overflow`` once, when that is more than
    ``most_unread`` bytes: it is thrown away, and the other side is to be ended. Both must return at once.
    """

    def __init__(
        self,
        sock: socket.socket,
        arena: Arena,
        mapping: Mapping,
        *,
        longest_received: int = sys.maxsize,
        most_unread: int = sys.maxsize,
        on_backlog: Callable[[], None] = lambda: None,
        on_overflow: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(sock, arena, mapping, longest_received=longest_received)
        self._backlog: deque[tuple[bytes, list[int]]] = deque()
        self._unread = 0
        self._most_unread = most_unread
        self._overflown = False
        self._on_backlog = on_backlog
        self._on_overflow = on_overflow

    @property
    def backlogged(self) -> bool:
        return bool(self._backlog)

    def flush(self, *, wait: bool = False) -> None:
        """Send as much as the other side takes at the moment, or all."""
        flags = 0 if wait else DONT_WAIT
        with self._lock:
            while self._backlog:
                data, descriptors = self._backlog[0]
                try:
                    self._send_packet([data], descriptors, flags)
                except BlockingIOError:
                    return
                except (OSError, PeerGoneError):  # Without one of its messages the other side would wait for good.
                    self._forget()
                    self.shutdown()
                    return
                self._pop()

    def close(self) -> None:
        super().close()
        with self._lock:
            self._forget()

    def _forget(self) -> None:
        while self._backlog:
            self._pop()

    def _pop(self) -> None:
        data, descriptors = self._backlog.popleft()
        self._unread -= _cost(data)
        _close(descriptors)

    def _transmit(self, parts: list[Any], descriptors: Sequence[int]) -> None:
        try:
            if self._overflown:
                raise UndeliveredError("the other side does not read")
            if not self._backlog:
                self._send_packet(parts, descriptors, DONT_WAIT)
                return
        except BlockingIOError:
            pass
        self._let_wait(b"".join(parts), descriptors)

    def _let_wait(self, data: bytes, descriptors: Sequence[int]) -> None:
        if self._unread + _cost(data) > self._most_unread:
            self._overflown = True
            self._forget()
            self._on_overflow()
            raise UndeliveredError("the other side does not read")
        self._backlog.append((data, _copies(descriptors)))
        self._unread += _cost(data)
        self._on_backlog()


class WorkChannel(ServerChannel):
    """The channel for work. An exchange is one message to the process, and the answers to it; there is one at a time.

    Any thread or event loop may begin one. It receives the answers, or has another thread do that; then the
    exchange is ended. ``exited`` is set when the process has ended.
    """

    def __init__(
        self,
        sock: socket.socket,
        arena: Arena,
        mapping: Mapping,
        exited: threading.Event,
        *,
        longest_received: int,
    ) -> None:
        super().__init__(sock, arena, mapping, longest_received=longest_received)
        self._exited = exited
        self._exchange = threading.Lock()

    def begin(self, kind: Kind, body: Any, payload: Packer | None = None, *, wait: bool = True) -> bool:
        """Send a message. The caller has the answers received with :meth:`answer`, and calls :meth:`end` then.

        Returns False while there is another exchange, without ``wait``. If this raises, there is nothing to end.

        Raises:
            UndeliveredError: the process had ended before.
            OSError: there is no memory for the tensors.
        """
        if not self._exchange.acquire(blocking=wait):
            return False
        try:
            if self._exited.is_set():
                raise UndeliveredError("the process has ended")
            self.send(kind, body, payload)
        except BaseException:
            self._exchange.release()
            raise
        return True

    def answer(self, *, wait: bool) -> Message:
        """The next answer.

        Raises:
            PeerGoneError: the process has ended.
            ProtocolError: the answer makes no sense.
            BlockingIOError: there is none yet, without ``wait``.
            LongMessageError: it takes a while to read, without ``wait``; it is still the next one.
        """
        if wait:
            self.flush(wait=True)
        message = self.receive(0 if wait else DONT_WAIT, brief=not wait)
        if message is None:
            raise PeerGoneError("the process has ended")
        return message

    def end(self) -> None:
        """The exchange has ended; the next one may begin."""
        self._exchange.release()

    def call(self, kind: Kind, body: Any) -> Message:
        """Send a message that has one answer, and return that. Raises as :meth:`begin` and :meth:`answer` do."""
        self.begin(kind, body)
        try:
            return self.answer(wait=True)
        finally:
            self.end()

    def close(self) -> None:
        """Close the channel once no one waits for an answer any more."""
        with self._exchange:
            super().close()


def _cost(data: bytes) -> int:
    """How much memory a packet that waits takes, about."""
    return len(data) + _ENTRY_BYTES


def _copies(descriptors: Sequence[int]) -> list[int]:
    """Copies of all of them; raises ``OSError`` if there is no descriptor left."""
    copies: list[int] = []
    try:
        copies.extend(map(os.dup, descriptors))
    except OSError:
        _close(copies)
        raise
    return copies


def _close(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
