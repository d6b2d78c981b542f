"""A channel whose sender waits for nobody."""

import os
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

from repoagent.serving.backends.python.process.channel import (
    Channel,
    Kind,
    Message,
    Payload,
    PeerGoneError,
    UndeliveredError,
)
from repoagent.serving.backends.python.process.memory import Arena, Mapping
from repoagent.serving.backends.python.process.packets import DONT_WAIT, send_packet

__all__ = ["AskBack", "Listener", "PatientChannel", "WorkChannel"]


class AskBack(NamedTuple):
    """After how much silence what was sent ahead is asked back, and the number of its last request."""

    seconds: float
    number: int


class Listener(NamedTuple):
    """How the answers of one exchange are taken."""

    ends: Callable[[Message], bool]
    """Whether an answer is the last one."""
    heard: Callable[[Message], None]
    """Called with each answer but the last one."""
    ask_back: AskBack | None
    """When the child is asked, once, to give back what it has not begun."""


_ONE_ANSWER: Final = Listener(lambda _: True, lambda _: None, None)


class PatientChannel(Channel):
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
                    send_packet(self._socket, [data], descriptors, flags)
                except BlockingIOError:
                    return
                except OSError:  # Without one of its messages the other side would wait for good.
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


def _cost(data: bytes) -> int:
    """How much memory a packet that waits takes, about."""
    return len(data) + _ENTRY_BYTES


def _copies(descriptors: Sequence[int]) -> list[int]:
    """Copies of all of them.

    Raises:
        OSError: there is no descriptor left.
    """
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


class WorkChannel:
    """One side of the channel: any thread may begin an exchange, and only one is under way."""

    def __init__(
        self, channel: PatientChannel, name: str, exited: threading.Event, ask_back: Callable[[int], None]
    ) -> None:
        self._channel: Final = channel
        self._name = name
        self._exited = exited
        self._ask_back = ask_back
        self._exchange = threading.Lock()

    def exchange(
        self, kind: Kind, body: Any, payload: Payload | None = None, listener: Listener = _ONE_ANSWER
    ) -> Message:
        """Give the child something to do, and return the last answer.

        Raises:
            UndeliveredError: the process had ended before.
            PeerGoneError: it has ended since.
            ProtocolError: it talks nonsense.
            OSError: there is no memory for the tensors.
        """
        with self._exchange:
            if self._exited.is_set():
                raise UndeliveredError(self._name)
            self._channel.send(kind, body, payload)
            return self._listen(None, listener)

    def begin(self, kind: Kind, body: Any, payload: Payload | None) -> bool:
        """Give the child something to do, without waiting for anything; False if it does something else, or has ended.

        Else the caller takes the answers with :meth:`answer`, and calls :meth:`over` or :meth:`go_on` in the end.
        Raises as :meth:`exchange` does.
        """
        if not self._exchange.acquire(blocking=False):
            return False
        begun = False
        try:
            if not self._exited.is_set():
                self._channel.send(kind, body, payload)
                begun = True
        finally:
            if not begun:
                self._exchange.release()
        return begun

    @property
    def fd(self) -> int:
        """Readable when there is an answer. Valid during an exchange."""
        return self._channel.fileno()

    @property
    def takes_slowly(self) -> bool:
        """Whether something of what was begun has not been sent, for want of room."""
        return self._channel.backlogged

    @property
    def sent(self) -> int:
        """How many messages have been sent."""
        return self._channel.sent

    def answer(self) -> Message | None:
        """The next answer, or None if none will come; waits for nothing.

        Raises:
            BlockingIOError: there is none yet.
            LongMessageError: it takes a while to read.
            ProtocolError: it makes no sense.
        """
        return self._channel.receive(socket.MSG_DONTWAIT, brief=True)

    def over(self) -> None:
        """The exchange that was begun has ended."""
        self._exchange.release()

    def go_on(self, first: Message | None, listener: Listener) -> Message:
        """Bring the exchange that was begun to its end, as :meth:`exchange` does. ``first`` has been received."""
        try:
            return self._listen(first, listener)
        finally:
            self._exchange.release()

    def _listen(self, first: Message | None, listener: Listener) -> Message:
        ends, heard, ask_back = listener
        self._channel.flush(wait=True)
        message = first
        while True:
            if message is None:
                if ask_back is not None and not self._channel.wait(ask_back.seconds):
                    self._ask_back(ask_back.number)
                    ask_back = None
                message = self._channel.receive()
            if message is None:
                raise PeerGoneError(self._name)
            if ends(message):
                return message
            heard(message)
            message = None

    def shutdown(self) -> None:
        """The process has ended: wake whoever waits for an answer."""
        self._channel.shutdown()

    def close(self) -> None:
        """Close the channel once nobody waits for an answer any more."""
        with self._exchange:
            self._channel.close()


_ENTRY_BYTES: Final = 256
