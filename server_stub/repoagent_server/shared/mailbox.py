"""Responses from any thread to one event loop, with one wake-up for as many of them as there are."""

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from typing import Final, Protocol

from repoagent.serving.requests.request import InferResponse

logger = logging.getLogger(__name__)
_ROOM: Final = 1024
"""Responses that may wait for the loop before senders of more are held up."""
_HOLD_SECONDS: Final = 1.0
"""For how long at most: the sender may hold something that the loop waits for."""


class Receiver(Protocol):
    """Who a response is for."""

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        """Take a response, on the event loop's thread."""


class Mailbox:
    """The way back to ``loop``. Made, and drained, on the loop's thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()
        self._waiting: deque[tuple[Receiver, InferResponse | None, bool]] = deque()
        self._woken = False
        self._room = threading.Event()
        self._room.set()

    def post(self, receiver: Receiver, response: InferResponse | None, final: bool) -> None:
        """Hand ``response`` over, from any thread. Waking the loop is what costs, so it is done once per batch."""
        here = threading.get_ident() == self._thread
        if here and not self._waiting:  # else it would overtake what another thread has posted
            receiver.deliver(response, final)
            return
        self._waiting.append((receiver, response, final))
        if not self._woken:
            # Two threads may both get here; the second wake-up then finds nothing, which is harmless.
            self._woken = True
            self._wake()
        if len(self._waiting) > _ROOM and not here:
            self._hold()

    def _hold(self) -> None:
        """Let the loop catch up with a model that answers faster than answers are written."""
        self._room.clear()
        if len(self._waiting) > _ROOM:  # else the loop may have been there before the flag fell
            self._room.wait(_HOLD_SECONDS)

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._drain)
        except RuntimeError:
            if not self._loop.is_closed():
                raise
            # The front end has stopped without waiting for this answer: there is no one left to read it.

    def _drain(self) -> None:
        self._woken = False  # before the first look: what comes later wakes the loop again
        waiting = self._waiting
        for _ in range(len(waiting)):  # no more than that, so that connections are read and written in between
            receiver, response, final = waiting.popleft()
            try:
                receiver.deliver(response, final)
            except Exception:  # the others are to be delivered all the same
                logger.exception("a response could not be delivered")
        if waiting and not self._woken:
            self._woken = True
            self._loop.call_soon(self._drain)
        if not self._room.is_set():
            self._room.set()


class Answer(ABC):
    """The sender of one request, whose responses are delivered on the event loop's thread: a :class:`Receiver`."""

    __slots__ = ("_mailbox",)

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox

    def send(self, response: InferResponse | None, final: bool) -> None:
        """Take a response on any thread; see :class:`~repoagent.serving.requests.request.ResponseSender`."""
        self._mailbox.post(self, response, final)

    @abstractmethod
    def deliver(self, response: InferResponse | None, final: bool) -> None:
        """See :class:`Receiver`."""
