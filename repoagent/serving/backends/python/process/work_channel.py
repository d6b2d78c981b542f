"""The channel on which a child process is given something to do, one exchange at a time."""

import socket
import threading
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from repoagent.serving.backends.python.process.channel import (
    Kind,
    Message,
    Payload,
    PeerGoneError,
    UndeliveredError,
)
from repoagent.serving.backends.python.process.patient_channel import PatientChannel

__all__ = ["AskBack", "Listener", "WorkChannel"]


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
