"""HTTP/1.1 on one connection: uvloop has the transport, httptools parses.

The service is called directly. A protocol for ASGI applications makes a task of every request and copies every body
twice; at the rates of small models that is most of the work.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from repoagent_server.access import PeerIdentity
from repoagent_server.codec.binary import Buffer
from repoagent_server.http.body import LargeBody
from repoagent_server.http.messages import (
    CONTINUE,
    LAST_CHUNK,
    Request,
    Response,
    chunk,
    error_response,
    render,
    render_head,
)
from repoagent_server.http.reader import Limits, Reading, RequestReader
from repoagent_server.http.service import HttpService, Refusal
from repoagent_server.shared.connections import JOIN_BELOW, Connections, address_of, write_pieces
from repoagent_server.shared.reserve import Uptake, too_much

_LINGER_SECONDS: Final = 10.0
_UNWRITTEN: Final = 64
"""Answers that may wait to be written on one connection."""
_PROBE_SECONDS: Final = 1
"""A client that has stopped sending gets its answer, or a sign that it is under way, which a closed socket refuses.
Without a sign, the client's system refuses probes once it has forgotten the socket, after a minute."""
_UNSENT: Final = 1 << 16
"""Bytes of a stream that the system takes before it can send them. By itself it takes megabytes, so that a client that
does not read would not be noticed before its whole text has been generated."""
_TCP_CLOSE: Final = 7
_UNFINISHED: Final = (Reading.HEAD, Reading.BODY, Reading.SKIPPED)


class HttpConnection(asyncio.Protocol):
    """Has requests answered one after another and writes the responses in the same order."""

    def __init__(self, service: HttpService, connections: Connections, limits: Limits) -> None:
        self._service = service
        self._connections = connections
        self._in_flight = connections.in_flight
        self._reader = RequestReader(self, limits, service.reserve)
        self._unparsed = b""
        """What has come and waits for its turn."""
        self._takes_turns = False
        self._transport: asyncio.Transport | None = None
        self._waiting: deque[_Exchange] = deque()
        self._current: _Exchange | None = None
        self._pumping = False
        self._writable = True
        self._unwritten: list[Buffer] = []
        self._ends = False
        self._no_more = False
        """The client has stopped sending, and waits for answers."""
        self._streams = False
        """Whether the current answer has begun."""
        self._progress = 0
        self._resumed = 0
        self._unread = service.reserve.hold_unread()
        self._written = 0
        self._uptake = Uptake(service.reserve)
        self._opened = 0.0
        self._large: LargeBody | None = None
        self._peer: PeerIdentity | None = None
        self._address = ""

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._opened = asyncio.get_running_loop().time()
        self._peer = PeerIdentity.of_connection(transport.get_extra_info("ssl_object"))
        self._address = address_of(transport)
        self._connections.opened(self, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._connections.lost(self)
        self._unread.release()
        self._reader.drop()
        self._unparsed, self._large = b"", None
        self._waiting.clear()
        if self._current is not None and self._current.on_cancel is not None:
            self._current.on_cancel()

    def eof_received(self) -> bool | None:
        """The client has closed its side, or all of the connection: that looks the same until something is sent.

        What it has sent whole is answered, unless TLS is used, which has no half of a connection.
        """
        transport = self._transport
        if transport is None or not self._owes() or not _probe(transport):
            return None
        self._no_more = True
        asyncio.get_running_loop().call_later(_PROBE_SECONDS, self._end_if_gone)
        return True

    def _owes(self) -> bool:
        """Whether an answer is still to be given or written, or what may be a request to be read."""
        return bool(self._current or self._waiting or self._unwritten or self._unparsed)

    def _end_if_gone(self, asked: bool = False) -> None:
        """End a half-closed connection whose client has closed the other half as well."""
        transport, current = self._transport, self._current
        if transport is None or transport.is_closing():
            return
        if transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_CLOSE:
            transport.abort()
            return
        if not asked and current is not None and not current.http_1_0 and not self._streams:
            self.flush()
            transport.write(CONTINUE)  # every client passes this over before an answer
            asked = True
        asyncio.get_running_loop().call_later(_PROBE_SECONDS, self._end_if_gone, asked)

    def pause_writing(self) -> None:
        self._writable = False
        self._fall_behind(True)

    def _fall_behind(self, behind: bool) -> None:
        if self._current is not None and self._current.on_behind is not None:
            self._current.on_behind(behind)

    def resume_writing(self) -> None:
        self._writable = True
        self._resumed += 1
        if self._transport is not None:
            self._unread.resize(self._transport.get_write_buffer_size())
        self._fall_behind(False)
        self._pump()

    def data_received(self, data: bytes) -> None:
        self._progress += 1
        if self._unparsed:
            data = self._unparsed + data
        reader = self._reader
        self._unparsed = reader.feed(data)
        if self._unparsed:
            self._read_on_later()
        elif reader.state is Reading.BODY:
            self._read_large_body()

    def _read_on_later(self) -> None:
        """Go on with what has come once others have had their turn, and what waits has been answered."""
        if self._transport is not None:
            self._transport.pause_reading()
        if not self._takes_turns:
            self._takes_turns = True
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._takes_turns = False
        transport = self._transport
        if transport is None or transport.is_closing() or self._waiting:
            return  # what is answered next goes on
        if self._unparsed:
            self.data_received(b"")
        if not self._unparsed and not self._waiting:
            self._read_more(transport)

    # What the reader calls.

    @property
    def alone(self) -> bool:
        return len(self._connections) == 1

    def take(self, request: Request, keep_alive: bool, http_1_0: bool) -> None:
        request.peer, request.address = self._peer, self._address
        self._waiting.append(_Exchange(self, request, keep_alive, http_1_0))
        if self._current is None:
            self._pump()
        if self._waiting and self._transport is not None:
            self._transport.pause_reading()  # sending ahead is allowed, but not without end

    def refuse(self, response: Response) -> None:
        self._waiting.append(_Exchange(self, None, False, False, lambda exchange: exchange.respond(response)))
        self._pump()

    def refuses(self, request: Request, keep_alive: bool, http_1_0: bool) -> bool:
        request.peer, request.address = self._peer, self._address
        refusal = self._service.verdict(request)
        if refusal is None:
            return False
        self._waiting.append(_Exchange(self, request, keep_alive, http_1_0, refusal))
        self._pump()
        if self._waiting and self._transport is not None:
            self._transport.pause_reading()
        return True

    def invite(self) -> None:
        if self._transport is not None and self._current is None:
            self.flush()
            self._transport.write(CONTINUE)

    def _read_large_body(self) -> None:
        large = self._reader.large_body()
        transport = self._transport
        if large is None or transport is None:
            return
        frame, pieces = large
        reserve = self._service.reserve
        self._large = LargeBody(frame, pieces, self, self._take_large_body, self._refuse_large_body, reserve)
        _switch(transport, self._large)

    def _take_large_body(self, body: memoryview) -> None:
        self._large = None
        if self._transport is not None:
            _switch(self._transport, self)
        self._reader.finish(body)

    def _refuse_large_body(self) -> None:
        self._large = None
        if self._transport is not None:
            _switch(self._transport, self)
        self._reader.refuse_body()

    # From requests to responses.

    def _pump(self) -> None:
        """Have what is waiting answered, one after another, as long as answers come at once and can be written."""
        if self._pumping:
            return
        self._pumping = True
        while self._waiting and self._current is None and self._may_answer():
            exchange = self._current = self._waiting.popleft()
            self._in_flight.started()
            if exchange.refusal is not None:
                exchange.refusal(exchange)
            elif exchange.request is not None:
                self._service.handle(exchange.request, exchange)
        self._pumping = False

    def _may_answer(self) -> bool:
        """Whether another answer could be taken: the client is there and reads, and not much waits to be written."""
        return self._writable and not self._ends and self._transport is not None and len(self._unwritten) < _UNWRITTEN

    def send(self, exchange: "_Exchange", response: Response) -> None:
        """Write the response to the current exchange, if the client is still there."""
        self._in_flight.finished()
        transport = self._transport
        self._current = None
        if transport is None or transport.is_closing():
            return
        close = not exchange.keep_alive or self._service.stopping or self._service.parting
        request = exchange.request
        length = response.length
        if length >= JOIN_BELOW and not self._unread.resize(self._unread.size + length):
            response = error_response(too_much())
            length = 0
        pieces = render(
            response,
            close=close,
            announce_keep_alive=exchange.http_1_0,
            bodiless=request is not None and request.method == b"HEAD",
            request_id=request.frame.request_id if request is not None else None,
        )
        first = not self._unwritten
        self._unwritten += pieces
        if close:
            self._waiting.clear()
            self._ends = True
        if request is not None and request.alone and not self._waiting:
            self.flush()
        elif length >= JOIN_BELOW:
            self.flush()  # so that a client that does not read is noticed before more is computed for it
        else:
            if first:
                self._connections.write_soon(self)
            if self._waiting:
                self._pump()

    def flush(self) -> None:
        """Write the answers given so far."""
        pieces, self._unwritten = self._unwritten, []
        transport = self._transport
        if transport is None or not pieces:
            return
        self._written += write_pieces(transport, pieces)
        if self._unread.size:
            self._unread.resize(transport.get_write_buffer_size())
        self._go_on(transport)

    def _go_on(self, transport: asyncio.Transport) -> None:
        """What follows an answer that has been written."""
        if self._ends:
            self._end(transport)
        elif self._waiting:
            self._pump()
        elif self._unparsed:
            self._read_on_later()
        elif self._no_more or not transport.is_reading():
            self._read_more(transport)

    def _read_more(self, transport: asyncio.Transport) -> None:
        """Read on where everything has been answered, or is about to be."""
        if not self._no_more:
            transport.resume_reading()
        elif not self._owes():
            transport.close()

    def begin(self, exchange: "_Exchange", head: Response) -> None:
        """Write the head of a response that comes in pieces."""
        if self._service.stopping or self._service.parting:
            exchange.keep_alive = False
        self._streams = True
        self.flush()
        transport = self._transport
        if transport is not None:
            # A client that only speaks HTTP/1.0 knows no chunks: for it the end of the connection is the end.
            close = exchange.http_1_0 or not exchange.keep_alive
            request_id = exchange.request.frame.request_id if exchange.request is not None else None
            _bound_unsent(transport)
            transport.write(render_head(head, close=close, chunked=not exchange.http_1_0, request_id=request_id))

    def write(self, exchange: "_Exchange", piece: bytes) -> None:
        """Write a piece of it, unless the client has gone."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._unread.keeps_up(transport.get_write_buffer_size()):
            framed = piece if exchange.http_1_0 else chunk(piece)
            self._written += len(framed)
            transport.write(framed)
        else:
            transport.abort()

    def end(self, exchange: "_Exchange") -> None:
        """Nothing more of it comes."""
        self._streams = False
        self._in_flight.finished()
        transport = self._transport
        self._current = None
        if transport is None or transport.is_closing():
            return
        if not exchange.http_1_0:
            transport.write(LAST_CHUNK)
        if exchange.http_1_0 or not exchange.keep_alive:
            self._waiting.clear()
            self._ends = True
        self._go_on(transport)

    def _end(self, transport: asyncio.Transport) -> None:
        if self._no_more or self._reader.state not in (Reading.REFUSED, Reading.SKIPPED):
            transport.close()
            return
        # Closing now would reset the connection under a client that is still sending, and lose it the answer. So would
        # not reading: that ends where a request waits for the one before it.
        transport.resume_reading()
        if transport.can_write_eof():
            transport.write_eof()
        asyncio.get_running_loop().call_later(_LINGER_SECONDS, transport.close)

    def untried(self, since: float) -> bool:
        """Whether it has been opened after ``since``, by the loop's clock, and has brought nothing yet."""
        return self._opened > since and not self._progress

    def close(self) -> None:
        """End the connection after the answers given so far."""
        self.flush()
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """End it without waiting for a client that does not read."""
        if self._transport is not None:
            self._transport.abort()

    def close_if_stalled(self) -> None:
        """End it if a request or an answer stalls.

        Since the last call, nothing more has come of the first request or one that has begun. Or nothing has been read
        of an answer that waits. If others need its memory, little counts as nothing."""
        progress = self._progress + (self._large.filled if self._large is not None else 0)
        lags = self._large.lags() if self._large is not None else self._reader.lags()
        silent = progress == self._last_progress
        if (silent and not progress) or (self._reader.state in _UNFINISHED and (lags or silent)):
            self.close()
        self._last_progress = progress
        size = self._transport.get_write_buffer_size() if self._transport is not None else 0
        taken = self._written - size
        if self._uptake.lags(taken, size) or (not self._writable and taken == self._last_taken):
            self.abort()
        self._last_taken = taken

    def progress(self) -> float | None:
        transport = self._transport
        if transport is None or transport.is_closing() or self._current is not None or self._unwritten:
            return None
        return self._progress + self._resumed + (self._large.filled if self._large is not None else 0)

    _last_progress = -1
    _last_taken = -1


def _probe(transport: asyncio.Transport) -> bool:
    """Have the system ask for signs of life; False where it cannot, or where a client leaves in another way."""
    own = transport.get_extra_info("socket")
    if own is None or own.family == socket.AF_UNIX or transport.get_extra_info("ssl_object") is not None:
        return False
    for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
        own.setsockopt(socket.IPPROTO_TCP, option, _PROBE_SECONDS)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    return True


def _bound_unsent(transport: asyncio.Transport) -> None:
    own = transport.get_extra_info("socket")
    if own is not None and own.family != socket.AF_UNIX:
        own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT)


def _switch(transport: asyncio.Transport, protocol: asyncio.BaseProtocol) -> None:
    transport.pause_reading()
    transport.set_protocol(protocol)
    transport.resume_reading()


class _Exchange:
    """One request on its way to its response."""

    __slots__ = ("_connection", "http_1_0", "keep_alive", "on_behind", "on_cancel", "refusal", "request")

    def __init__(
        self,
        connection: HttpConnection,
        request: Request | None,
        keep_alive: bool,
        http_1_0: bool,
        refusal: Refusal | None = None,
    ) -> None:
        self._connection = connection
        self.request = request
        self.keep_alive = keep_alive
        self.http_1_0 = http_1_0
        self.refusal = refusal
        self.on_cancel: Callable[[], None] | None = None
        self.on_behind: Callable[[bool], None] | None = None

    def respond(self, response: Response) -> None:
        # The way to cancel leads back here through the request; left in place, every request would be a reference
        # cycle and the garbage collector's work.
        self.on_cancel = self.on_behind = None
        self._connection.send(self, response)

    def begin(self, head: Response) -> None:
        self._connection.begin(self, head)

    def write(self, piece: bytes) -> None:
        self._connection.write(self, piece)

    def end(self) -> None:
        self.on_cancel = self.on_behind = None
        self._connection.end(self)
