"""Bytes in, requests out: the parser of one connection, and the limits on what it takes."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import httptools

from repoagent_server.codec.binary import Buffer
from repoagent_server.http.body import DEFAULT_MAX_BODY, LARGE_BODY, frame_of, json_length, too_large
from repoagent_server.http.messages import STATUS_OF, Frame, Header, Request, Response, error_response
from repoagent_server.shared.reserve import WORTH_COUNTING, GrowingBody, Reserve, too_much


@dataclass(frozen=True, slots=True)
class Limits:
    """What one connection may ask for."""

    max_body: int = DEFAULT_MAX_BODY
    max_head: int = 1 << 16
    """Bytes of a request line and its headers."""
    stall_seconds: float = 60.0
    """How long a client may pause in the middle of a request; idle connections stay open."""


class Reading(enum.Enum):
    """What the next bytes are."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    SKIPPED = "skipped"
    """The body of a request that was answered for its head: dropped up to its end, where the next request begins."""
    REFUSED = "refused"
    """The rest of a request that was refused, or bytes after the last one: dropped, so that a client can send it all
    and then read the answer."""


@dataclass(frozen=True, slots=True)
class _Known:
    """A head that was parsed before, as it came, and its meaning."""

    head: bytes
    size: int
    """Of the whole request."""
    method: bytes
    target: bytes
    headers: Sequence[Header]
    frame: Frame


class RequestSink(Protocol):
    """What becomes of what is read. None of the methods raises: they are called from inside the parser."""

    @property
    def alone(self) -> bool:
        """No other connection is open."""

    def take(self, request: Request, keep_alive: bool, http_1_0: bool) -> None:
        """A whole request."""

    def refuse(self, response: Response) -> None:
        """A request that will not be read to its end; nothing follows it."""

    def refuses(self, request: Request, keep_alive: bool, http_1_0: bool) -> bool:
        """Whether ``request``, whose body is not there yet, is refused for its head. If so, that is its answer."""

    def invite(self) -> None:
        """The client waits for the sign to go on (Expect: 100-continue)."""


_HTTP_1_0: Final = "1.0"
_VERSIONS: Final = frozenset({_HTTP_1_0, "1.1"})
_END_OF_HEAD: Final = b"\r\n\r\n"
_PIECES: Final = 64
_PIECES_BYTES: Final = 1 << 20
"""Of a body that are kept as they came. A client may send chunks of a byte; each would be an object."""
_CHUNKS: Final = 1 << 16
"""That a body may come in: Triton's limit."""
_TURN: Final = 1 << 13
"""Bytes of heads and chunks that are parsed before it is another connection's turn. They take a few milliseconds."""
_SKIPPED: Final = LARGE_BODY
"""The longest body of a refused request that is worth its connection. After a longer one the connection ends."""
_HEAD_TOO_LONG: Final = ("the request line and headers are too long", 431)


class RequestReader:
    """Parses what one connection receives."""

    def __init__(self, sink: RequestSink, limits: Limits, reserve: Reserve) -> None:
        self._sink = sink
        self._limits = limits
        self._hold = reserve.hold()
        self._parser = httptools.HttpRequestParser(self)
        self.state = Reading.IDLE
        self._head_size = 0
        self._fresh = True
        self._target = b""
        self._headers: list[Header] = []
        self._method = b""
        self._keep_alive = True
        self._http_1_0 = False
        self._frame = Frame()
        self._pieces: list[bytes] = []
        self._joined = GrowingBody()
        """What came of the body before the pieces."""
        self._chunks = 0
        self._ahead = 0
        """How many bytes have come behind those that are parsed."""
        self._size = 0
        self._content = False
        """Whether something of a body was in the bytes parsed last."""
        self._between = 0
        self._known: _Known | None = None
        self._first: bytes | None = None
        self._upgrade = False
        self._judged = False

    def feed(self, data: bytes) -> bytes:
        """Parse ``data``, whole requests of which go to the sink; what is left of it for a later turn of the loop.

        Clients send the same head again and again on a connection. One that came before is compared, not parsed;
        without this a small request costs the server 18 to 30 % more (benchmarks/fast_paths.py).
        """
        known = self._known
        if known is not None and len(data) == known.size and self.state is Reading.IDLE and data.startswith(known.head):
            body = data[len(known.head) :]
            sink = self._sink
            sink.take(Request(known.method, known.target, known.headers, known.frame, body, sink.alone), True, False)
            return b""
        self._first = data if self.state is Reading.IDLE else None
        if len(data) > _TURN:
            return self._feed_long(data)
        self._parse(data)
        return b""

    def _feed_long(self, data: bytes) -> bytes:
        """Parse of ``data`` what a turn allows. Bytes of a body whose length is known are not counted."""
        position = spent = 0
        while position < len(data) and spent < _TURN and self.state is not Reading.REFUSED:
            stop = position + self._missing()
            if stop == position:
                end = data.find(_END_OF_HEAD, position, position + _TURN) if self.state is not Reading.BODY else -1
                stop = end + len(_END_OF_HEAD) if end >= 0 else position + _TURN
                spent += stop - position
            self._ahead = max(0, len(data) - stop)
            self._parse(data[position:stop])
            position = stop
        self._ahead = 0
        return b"" if self.state is Reading.REFUSED else data[position:]

    def _missing(self) -> int:
        """How many bytes are still to come of a body whose length is known."""
        known = self.state is Reading.BODY or self.state is Reading.SKIPPED
        return max(0, self._frame.length - self._size) if known else 0

    def _parse(self, data: bytes) -> None:
        try:
            while data and self.state is not Reading.REFUSED:
                data = self._parse_once(data)
        except httptools.HttpParserError as error:
            if self.state is not Reading.REFUSED:
                self._refuse(f"malformed HTTP request: {error}", 400)

    def _parse_once(self, data: bytes) -> bytes:
        """Parse ``data``; returns what is to be parsed then, if the parser stopped."""
        self._content = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._without_upgrade() + data[upgrade.args[0] :]
        if self.state is Reading.HEAD:
            self._count_head(len(data))
        elif self.state is Reading.BODY and not 0 < self._missing() <= self._ahead and not self._is_refused():
            self._count_between(0 if self._content else len(data))
            if self._size and self.state is Reading.BODY and not self._hold.resize(self._takes()):
                self.refuse_body()
        return b""

    def refuse_body(self) -> None:
        """There is no room for the body of the current request."""
        error = too_much()
        self._refuse(str(error), STATUS_OF[error.code])

    def drop(self) -> None:
        """The client has gone, and with it the request that is not all there."""
        self.state = Reading.REFUSED
        self._pieces = []
        self._joined = GrowingBody()
        self._hold.release()

    def _takes(self) -> int:
        """What the current body takes, joined."""
        return self._joined.takes(self._size - len(self._joined))

    def lags(self) -> bool:
        return self._hold.lags(self._size)

    def _is_refused(self) -> bool:
        """Whether the request is refused for its head, now that the head is there and the body is not.

        Asked once for each request. One that came whole is not asked about: it costs nothing to keep.
        """
        if self._judged:
            return False
        self._judged = True
        frame, close = self._frame, not self._keep_alive
        # A client that asked whether to send its body may send it or not: no one knows what follows.
        goes_on = 0 < frame.length <= _SKIPPED and not frame.expects_continue and not close
        self.state = Reading.SKIPPED if goes_on else Reading.REFUSED  # what the sink does depends on it
        request = Request(self._method, self._target, self._headers, frame, alone=self._sink.alone)
        if self._sink.refuses(request, goes_on, self._http_1_0):
            self._pieces = []
            return True
        self.state = Reading.BODY
        return False

    def _without_upgrade(self) -> bytes:
        """The head that has just been parsed, without its wish for another protocol, for a new parser.

        Such a wish need not be granted, but the old parser takes what follows for that protocol, although it is the
        body and further requests. (Java's client wishes for HTTP/2 with the first request of every connection.)
        """
        version = self._parser.get_http_version().encode()
        self._parser = httptools.HttpRequestParser(self)
        if self._method == b"CONNECT":  # there is no body, and what follows is for someone else
            self._refuse("Method Not Allowed", 405)
            return b""
        headers = [b"%s: %s" % (name, value) for name, value in self._headers if name.lower() != b"upgrade"]
        return b"\r\n".join([b"%s %s HTTP/%s" % (self._method, self._target, version), *headers]) + _END_OF_HEAD

    def _count_head(self, size: int) -> None:
        """An unfinished head has grown. (How much of the bytes in which it began is its own is not known.)"""
        if not self._fresh:
            self._head_size += size
        self._fresh = False
        if self._head_size > self._limits.max_head:
            self._refuse(*_HEAD_TOO_LONG)

    def _count_between(self, size: int) -> None:
        """``size`` bytes of an unfinished body were none of its content: of chunks' heads, and fields behind the last.

        The parser would take them without end.
        """
        self._between = self._between + size if size else 0
        if self._between > self._limits.max_head:
            self._refuse("what is between the chunks of the body, or behind them, is too long", 431)

    def large_body(self) -> tuple[Frame, list[bytes]] | None:
        """If the rest of the body should be read by other means: its frame, and what of it has come.

        The caller then ends the request with :meth:`finish`.
        """
        if self.state is not Reading.BODY or self._frame.length < LARGE_BODY:
            return None
        self._parser = httptools.HttpRequestParser(self)  # the old one waits for a body that it will not see
        pieces, self._pieces = self._pieces, []
        self._hold.release()
        return self._frame, pieces

    def finish(self, body: Buffer) -> None:
        """The body of the current request is complete."""
        self.state = Reading.IDLE
        if self._first is not None:
            self._remember(self._first)
        request = Request(self._method, self._target, self._headers, self._frame, body)
        self._sink.take(request, self._keep_alive, self._http_1_0)

    def _remember(self, data: bytes) -> None:
        """Keep the head of the current request if ``data`` was all of it and the connection goes on."""
        self._first = None  # what follows in the same bytes does not begin with them
        frame = self._frame
        size = len(data) - frame.length
        plain = self._keep_alive and not self._http_1_0 and not frame.expects_continue
        if plain and frame.length == self._size and data.find(_END_OF_HEAD) == size - len(_END_OF_HEAD):
            self._known = _Known(data[:size], len(data), self._method, self._target, self._headers, frame)

    def _refuse(self, reason: str, status: int) -> None:
        self.drop()
        self._sink.refuse(error_response(reason, status))

    # What the parser calls.

    def on_message_begin(self) -> None:
        if self.state is Reading.REFUSED:
            return
        self.state = Reading.HEAD
        self._judged = False
        self._target = b""
        self._headers = []
        self._pieces = []
        self._size = self._head_size = self._between = self._chunks = 0
        self._fresh = True

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._head_size += len(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.state is Reading.BODY:
            return  # a field behind the last chunk: it is no header, and nothing here asks for it
        self._headers.append((name, value))
        self._head_size += len(value)

    def on_headers_complete(self) -> None:
        if self.state is Reading.REFUSED:
            return
        parser = self._parser
        self.state = Reading.BODY
        self._method = parser.get_method()
        self._upgrade = parser.should_upgrade()
        if self._upgrade:
            return  # what comes next is not the body; see _without_upgrade
        self._keep_alive = parser.should_keep_alive()
        version = parser.get_http_version()
        self._http_1_0 = version == _HTTP_1_0
        frame = self._frame = frame_of(self._headers)
        if version not in _VERSIONS:  # a request line without a version is one of HTTP/0.9
            self._refuse("the request line must end in HTTP/1.1 or HTTP/1.0", 400)
        elif self._head_size > self._limits.max_head:
            self._refuse(*_HEAD_TOO_LONG)
        elif frame.fault is not None:
            self._refuse(*frame.fault)
        elif frame.length > self._limits.max_body:
            self._refuse(too_large(frame.length, self._limits.max_body), 400)
        elif frame.expects_continue and not self._is_refused():
            self._sink.invite()

    def on_chunk_header(self) -> None:
        self._chunks += 1
        if self._chunks > _CHUNKS and self.state is Reading.BODY:
            self._refuse(f"the body of the request has more than {_CHUNKS} chunks", 400)

    def on_body(self, body: bytes) -> None:
        self._size += len(body)
        if self.state is not Reading.BODY:
            return
        self._content = True
        if self._size > self._limits.max_body:
            self._refuse(too_large(self._size, self._limits.max_body), 400)
            return
        self._pieces.append(body)
        if len(self._pieces) > _PIECES or self._size - len(self._joined) > _PIECES_BYTES:
            self._join()

    def _join(self) -> GrowingBody:
        """Put together what has come."""
        joined = self._joined = self._joined if len(self._joined) else GrowingBody(json_length(self._frame))
        for piece in self._pieces:
            joined.extend(piece)
        self._pieces.clear()
        return joined

    def on_message_complete(self) -> None:
        if self.state is Reading.SKIPPED:
            self.state = Reading.IDLE
        elif self.state is not Reading.REFUSED and not self._upgrade:
            pieces = self._pieces
            if len(self._joined) or self._hold.size >= WORTH_COUNTING:
                self._finish_long()
            else:
                self._hold.release()
                self.finish(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _finish_long(self) -> None:
        """A body that came in many pieces, or was counted, is complete."""
        body, self._joined = self._join(), GrowingBody()
        if self._hold.resize(body.takes()):
            self.finish(body.whole(self._hold))
        else:
            self.refuse_body()
