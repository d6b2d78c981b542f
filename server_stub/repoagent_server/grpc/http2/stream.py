"""One request and its answer on a connection."""

from collections import deque
from typing import Final, Protocol

from repoagent_server.grpc.http2.head import RequestHead


class Call(Protocol):
    """What the application makes of a stream; see :class:`~repoagent_server.grpc.http2.connection.Application`."""

    @property
    def unfinished(self) -> bool:
        """Whether a part of a message is there."""

    def data(self, data: bytes, start: int, stop: int, ended: bool) -> None:
        """Take ``data[start:stop]`` of the request's messages; ``ended``: nothing follows."""

    def lost(self) -> None:
        """The client has given the call up, or is gone. Nothing can be answered."""

    def drained(self) -> None:
        """All that was sent has left for the client's connection."""


class Stream:
    """Belongs to its connection. The call that it leads to is let go with its answer, or each would be a cycle."""

    __slots__ = (
        "begun", "call", "ended", "fields", "got", "head", "id", "plain", "queue", "received", "sent", "tail",
        "waiting", "window",
    )  # fmt: skip

    def __init__(self, number: int, head: RequestHead, window: int) -> None:
        self.id: Final = number
        self.head: Final = head
        self.window = window
        """How many bytes may be sent. Below 0 after the client has made all windows smaller."""
        self.plain = head.length is None
        """Its next DATA frame needs no look at windows and lengths."""
        self.ended = False
        """The client has sent all."""
        self.begun = False
        """The headers of the answer are out."""
        self.fields = head.repeated
        """Of the answer, encoded, beside those that every answer has."""
        self.received = 0
        """Bytes that have not been given back to the client's window."""
        self.got = 0
        """Bytes of the request so far."""
        self.queue: deque[memoryview] | None = None
        """Of the answer, what waits for a window."""
        self.waiting = 0
        """How many bytes that is."""
        self.sent = 0
        """How many bytes have left it."""
        self.tail = b""
        """The frame that follows the queue and ends the stream."""
        self.call: Call | None = None
