"""A request on a connection: its headers, for HTTP/2 (RFC 9113, section 8) and gRPC, and its stream."""

import base64
import binascii
import re
from collections import deque
from collections.abc import Sequence
from typing import Any, Final, Protocol

from repoagent_server.shared.request_id import NAME, is_valid

Field = tuple[bytes, bytes]

_PSEUDO: Final = frozenset((b":method", b":scheme", b":path", b":authority"))
_NEEDED: Final = frozenset((b":method", b":scheme", b":path"))
_CONNECTION: Final = frozenset((b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"))
_BAD_NAME: Final = re.compile(rb"[^\x21-\x39\x3b-\x40\x5b-\x7e]")
_BAD_VALUE: Final = re.compile(rb"[\x00\r\n]")
_BLANK: Final = re.compile(rb"\A[ \t]|[ \t]\Z")
_OWN: Final = frozenset((b"te", b"content-type", b"grpc-timeout", b"grpc-encoding", b"grpc-accept-encoding"))
"""Headers of the transport: no metadata of the call."""
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_UNITS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_DIGITS: Final = 18
_ENTRY: Final = 32
_REQUEST_ID: Final = NAME.encode()


class RequestHead:
    """Never changed once it is routed, but for the caller: requests with the same block of headers share it."""

    __slots__ = (
        "accepts_gzip", "caller", "encoding", "fields", "is_grpc", "lazy", "length", "malformed", "method", "path",
        "repeated", "request_id", "route", "size", "timeout", "timeout_is_bad",
    )  # fmt: skip

    def __init__(self, fields: Sequence[Field]) -> None:
        self.size = sum(len(name) + len(value) + _ENTRY for name, value in fields)
        """Bytes, as HPACK counts them."""
        fields = [(name, value if name[:1] == b":" else value.strip(b" \t")) for name, value in fields]
        self.fields = fields
        self.malformed = _malformed(fields)
        """It breaks HTTP/2."""
        named = dict(reversed(fields))
        self.path = named.get(b":path", b"")
        self.method = named.get(b":method", b"")
        kind = named.get(b"content-type", b"")
        self.is_grpc = kind == b"application/grpc" or kind.startswith((b"application/grpc+", b"application/grpc;"))
        self.encoding = named.get(b"grpc-encoding", b"identity")
        self.accepts_gzip = b"gzip" in named.get(b"grpc-accept-encoding", b"").replace(b" ", b"").split(b",")
        self.length = _length(named.get(b"content-length"))
        """Of the body, None if it is not stated."""
        found = _TIMEOUT.fullmatch(named.get(b"grpc-timeout", b""))
        self.timeout = int(found[1]) * _UNITS[found[2]] if found else None
        """Seconds."""
        name = named.get(_REQUEST_ID, b"")
        self.request_id = name.decode() if is_valid(name) else ""
        self.repeated = literal(_REQUEST_ID, name) if self.request_id else b""
        """Fields of the request that are fields of the answer, too."""
        self.timeout_is_bad = found is None and b"grpc-timeout" in named
        self.caller: Any = None
        """The client that the headers belong to, as found with the last call that had them."""
        self.route: Any = None
        """What the application made of it."""
        self.lazy = False
        """The application need not know of a call before its message is there."""

    def metadata(self) -> list[tuple[str, str | bytes]]:
        """The metadata of the call, as grpcio gives them: binary ones as bytes."""
        return [_metadatum(name, value) for name, value in self.fields if name[:1] != b":" and name not in _OWN]


def bad_trailers(fields: Sequence[Field]) -> bool:
    """Whether they are no fields that may follow the messages of a request."""
    return any(name[:1] == b":" or _bad_field(name, value) for name, value in fields)


def _malformed(fields: Sequence[Field]) -> bool:
    seen: set[bytes] = set()
    regular = False
    for name, value in fields:
        if name[:1] == b":":
            if regular or name not in _PSEUDO or name in seen or _BAD_VALUE.search(value) or _BLANK.search(value):
                return True
            seen.add(name)
        else:
            regular = True
            if _bad_field(name, value):
                return True
    return not seen >= _NEEDED or (b":path", b"") in fields


def _bad_field(name: bytes, value: bytes) -> bool:
    if not name or _BAD_NAME.search(name) or _BAD_VALUE.search(value):
        return True
    return name in _CONNECTION or (name == b"te" and value != b"trailers")


def _length(text: bytes | None) -> int | None:
    """Of ``content-length``; -1, which no body has, for what is not a number."""
    if text is None:
        return None
    return int(text) if text.isdigit() and len(text) <= _DIGITS else -1


def _metadatum(name: bytes, value: bytes) -> tuple[str, str | bytes]:
    key = name.decode("ascii")
    if not key.endswith("-bin"):
        return key, value.decode("utf-8", "surrogateescape")
    try:
        return key, base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except binascii.Error:
        return key, value


def literal(name: bytes, value: bytes) -> bytes:
    """A header that stands in no table and goes into none: right whatever the client's table is."""
    return b"\0" + _sized(name) + _sized(value)


def _sized(text: bytes) -> bytes:
    """With its length before it (RFC 7541, section 5.1, with a prefix of seven bits)."""
    length = len(text)
    if length < 0x7F:
        return bytes((length,)) + text
    out = bytearray((0x7F,))
    length -= 0x7F
    while length > 0x7F:
        out.append(length & 0x7F | 0x80)
        length >>= 7
    out.append(length)
    return bytes(out) + text


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
