"""The half of a connection that receives: frames become calls (RFC 9113). No socket, and no clock of its own."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from repoagent_server.grpc.http2.control import CONNECTION_WINDOW, MAX_FRAME, MAX_STREAMS, STREAM_WINDOW, Control, Rules
from repoagent_server.grpc.http2.frames import (
    ACK,
    CONTINUATION,
    DATA,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_HEAD,
    FRAME_SIZE_ERROR,
    HAS_PRIORITY,
    HEAD_BYTES,
    HEADERS,
    MOST,
    PADDED,
    PREFACE,
    PROTOCOL_ERROR,
    REFUSED_STREAM,
    SETTINGS,
    STREAM_CLOSED,
    U32,
    WINDOW_UPDATE,
    ConnectionFault,
    StreamFault,
    number_frame,
)
from repoagent_server.grpc.http2.head import RequestHead, Stream, bad_trailers
from repoagent_server.grpc.http2.headers import HeaderReader
from repoagent_server.grpc.http2.sender import Sender
from repoagent_server.shared.reserve import Reserve

_MAX_BLOCK: Final = 1 << 15
"""Bytes of a block of headers, and of any frame that is not DATA."""
_MAX_CONTINUATIONS: Final = 16
_RETURN_AT: Final = 4
"""The part of a window that is used before it is given back."""
_PRIORITY_BYTES: Final = 5
_SMALL: Final = 256
"""Bytes of a DATA frame below which it must end a message, or counts like an empty one."""
# A turn of the event loop, in microseconds, and what frames take of it, roughly: others have the next one.
_TURN: Final = 3000
_QUICK_CALL: Final = 50
_FRAME: Final = 3
_HEADER_BYTES: Final = 3
"""Of new headers that are decoded in a microsecond."""


class Application(Protocol):
    """Who makes calls of streams."""

    def route(self, head: RequestHead) -> None:
        """Note in a new head what calls with it are."""

    def opened(self, connection: "Connection", stream: Stream) -> None:
        """A call begins, unless its head is ``lazy``."""

    def data(self, connection: "Connection", stream: Stream, data: bytes, start: int, stop: int, ended: bool) -> None:
        """``data[start:stop]`` is of its messages; ``ended``: nothing follows."""


class _LongFrame:
    """A frame that is not all there, and is not waited for: DATA, or one that is skipped."""

    __slots__ = ("body", "ended", "padding", "stream")

    def __init__(self, stream: Stream | None, body: int, padding: int, ended: bool) -> None:
        self.stream = stream
        self.body = body
        self.padding = padding
        self.ended = ended


class _OpenBlock:
    """A block of headers that goes on in the next frame."""

    __slots__ = ("ended", "frames", "number", "pieces", "size")

    def __init__(self, number: int, ended: bool, piece: bytes) -> None:
        self.number = number
        self.ended = ended
        self.pieces = [piece]
        self.size = len(piece)


class Connection:
    """Give it what the socket brings; write what :attr:`sender` has when that returns."""

    def __init__(self, application: Application, rules: Rules, reserve: Reserve, clock: Callable[[], float]) -> None:
        self.sender: Final = Sender(reserve)
        """What answers go through."""
        self.control: Final = Control(self.sender, rules, clock)
        """Its settings, pings and end."""
        self.streams: Final = self.sender.streams
        """The calls that are not answered yet."""
        self._application = application
        self._headers = HeaderReader()
        self.peer: Any = None
        """The verified certificate of the client, if there is one: for the application."""
        self.address = ""
        """Where it comes from, for logs."""
        self._rest = b""
        self._greeted = False
        self._usual = False
        """The client's SETTINGS are there, and neither a block of headers nor the connection's end is under way."""
        self._settled = False
        self._long: _LongFrame | None = None
        self._block: _OpenBlock | None = None
        self.more = False
        """Not all that has come has been taken: :meth:`receive` goes on with it when it is called next."""
        self._spent = 0
        """Of a turn, by the frame that is taken, beside what each takes."""
        self._received = 0
        """Bytes that have not been given back to the connection's window."""

    def receive(self, data: bytes) -> None:
        """Take what the client has sent, as much as a turn allows. Its faults are answered, never raised."""
        self.more = False
        if self.control.closed:
            self._rest = b""
            return
        if self._rest:
            data, self._rest = self._rest + data, b""
        try:
            self._take(data)
        except ConnectionFault as fault:
            self.control.fail(fault.code, str(fault))
        if self._received > CONNECTION_WINDOW // _RETURN_AT:
            self.sender.out.append(number_frame(WINDOW_UPDATE, 0, self._received))
            self._received = 0

    @property
    def unfinished(self) -> bool:
        """Whether the client has begun something that only it can finish."""
        return bool(self._rest) or self._long is not None or self._block is not None or not self._settled

    def credit(self, stream: Stream) -> None:
        """The application has room for what the stream has brought: the client may send as much again."""
        if stream.received > STREAM_WINDOW // _RETURN_AT and not stream.ended and stream.id in self.streams:
            self.sender.out.append(number_frame(WINDOW_UPDATE, stream.id, stream.received))
            stream.received = 0
            self.sender.touch()

    def _take(self, data: bytes) -> None:
        position, end = self._resume(data), len(data)
        streams, known, unpack, take = self.streams, self._headers.known, FRAME_HEAD.unpack_from, self._application.data
        sender, control, left = self.sender, self.control, _TURN
        while end - position >= HEAD_BYTES:
            if left < 0:
                self.more = True
                break
            word, flags, number = unpack(data, position)
            start = position + HEAD_BYTES
            stop = start + (word >> 8)
            kind = word & 0xFF
            if stop > end:
                position = self._begin_long(kind, flags, number & MOST, word >> 8, data, start)
                break
            position = stop
            if self._usual:
                # What nearly all frames are: the headers of a call like one before, and its only message.
                if kind == DATA and flags == END_STREAM:
                    stream = streams.get(number)
                    if stream is not None and stream.plain and not stream.ended:
                        stream.ended = True
                        self._received += stop - start
                        left -= _QUICK_CALL
                        take(self, stream, data, start, stop, True)
                        continue
                elif kind == HEADERS and flags == END_HEADERS:
                    head = known.get(data[start:stop])
                    if (
                        head is not None
                        and head.lazy
                        and number > control.last
                        and number & 1
                        and len(streams) < MAX_STREAMS
                        and not control.parted
                    ):
                        control.last = number
                        streams[number] = Stream(number, head, sender.initial)
                        continue
            self._spent = _FRAME
            self._frame(kind, flags, number & MOST, data, start, stop)
            left -= self._spent
        if position < end:
            self._rest = data[position:]

    def _resume(self, data: bytes) -> int:
        """Where the first frame begins: after the preface, or after the rest of a long frame."""
        if self._long is not None:
            return self._go_on_with(self._long, data, 0)
        if self._greeted:
            return 0
        if not PREFACE.startswith(data[: len(PREFACE)]):
            raise ConnectionFault(PROTOCOL_ERROR, "this is not HTTP/2")
        if len(data) < len(PREFACE):
            self._rest = data
            return len(data)
        self._greeted = True
        return len(PREFACE)

    # Frames that are not all there.

    def _begin_long(self, kind: int, flags: int, number: int, length: int, data: bytes, start: int) -> int:
        """Begin with a frame of which a part is there; up to where ``data`` is used."""
        self._check_order(kind, flags, number)
        if length > MAX_FRAME:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a frame is too long")
        padding = 0
        if kind == DATA:
            if flags & PADDED:
                if start == len(data):
                    return start - HEAD_BYTES  # how much padding there is comes next
                padding, start = self._padding(data, start, length)
            body = length - padding - (1 if flags & PADDED else 0)
            try:
                stream = self._target(number, length)
            except StreamFault as fault:
                self.control.reset(number, fault.code)
                stream = None
            self._long = _LongFrame(stream, body, padding, bool(flags & END_STREAM))
        elif kind <= CONTINUATION:
            if length > _MAX_BLOCK:
                raise ConnectionFault(ENHANCE_YOUR_CALM, "a frame is too long")
            return start - HEAD_BYTES
        else:
            self.control.charge()
            self._long = _LongFrame(None, length, 0, False)
        return self._go_on_with(self._long, data, start)

    def _go_on_with(self, long: _LongFrame, data: bytes, position: int) -> int:
        """Take what has come of a long frame; where the next one begins."""
        end = len(data)
        stop = min(position + long.body, end)
        long.body -= stop - position
        padded = min(long.padding, end - stop)
        long.padding -= padded
        complete = not long.body and not long.padding
        if complete:
            self._long = None
        stream = long.stream
        if stream is not None and self.streams.get(stream.id) is stream:
            ended = complete and long.ended
            if ended or stop > position:
                try:
                    self._body(stream, data, position, stop, ended)
                except StreamFault as fault:
                    self.control.reset(stream.id, fault.code)
        return stop + padded

    # Whole frames.

    def _check_order(self, kind: int, flags: int, number: int) -> None:
        if self._block is not None and (kind != CONTINUATION or number != self._block.number):
            raise ConnectionFault(PROTOCOL_ERROR, "a block of headers is not finished")
        if not self._settled and (kind != SETTINGS or flags & ACK):
            raise ConnectionFault(PROTOCOL_ERROR, "SETTINGS must come first")

    def _frame(self, kind: int, flags: int, number: int, data: bytes, start: int, stop: int) -> None:
        self._check_order(kind, flags, number)
        if stop - start > MAX_FRAME:
            raise ConnectionFault(FRAME_SIZE_ERROR, "a frame is too long")
        try:
            if kind == DATA:
                self._data(flags, number, data, start, stop)
            elif kind == HEADERS:
                self._headers_frame(flags, number, data, start, stop)
            elif kind == CONTINUATION:
                self._continuation(flags, number, data[start:stop])
            elif (handler := self.control.handlers.get(kind)) is not None:
                handler(flags, number, data[start:stop])
            else:
                self.control.charge()  # an extension: ignored
        except StreamFault as fault:
            self.control.reset(number, fault.code)
        if kind == SETTINGS:
            self._settled = True
        self._usual = self._settled and self._block is None

    def _data(self, flags: int, number: int, data: bytes, start: int, stop: int) -> None:
        length = stop - start
        stream = self._target(number, length)
        if flags & PADDED:
            padding, start = self._padding(data, start, length)
            stop -= padding
        ended = bool(flags & END_STREAM)
        if start == stop and not ended:
            self.control.charge()
        if stream is not None and (start < stop or ended):
            self._body(stream, data, start, stop, ended)

    def _target(self, number: int, length: int) -> Stream | None:
        """The stream of DATA; None if no one reads it any more. Either way they use up the windows."""
        if not number or self.control.is_idle(number):
            raise ConnectionFault(PROTOCOL_ERROR, "DATA on an idle stream")
        self._received += length
        if self._received > CONNECTION_WINDOW:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "more than the connection's window")
        stream = self.streams.get(number)
        if stream is None or stream.ended:
            self.control.charge()
            if number in self.sender.abandoned:
                return None
            raise StreamFault(STREAM_CLOSED)
        stream.plain = False
        stream.received += length
        if stream.received > STREAM_WINDOW:
            raise StreamFault(FLOW_CONTROL_ERROR)
        return stream

    @staticmethod
    def _padding(data: bytes, start: int, length: int) -> tuple[int, int]:
        """How much there is, and where what it follows begins."""
        if not length or data[start] >= length:
            raise ConnectionFault(PROTOCOL_ERROR, "more padding than frame")
        return data[start], start + 1

    def _body(self, stream: Stream, data: bytes, start: int, stop: int, ended: bool) -> None:
        stream.got += stop - start
        length = stream.head.length
        if length is not None and (stream.got > length or (ended and stream.got != length)):
            raise StreamFault(PROTOCOL_ERROR)
        stream.ended = ended
        self._application.data(self, stream, data, start, stop, ended)
        if stop - start < _SMALL and not ended and stream.call is not None and stream.call.unfinished:
            self.control.charge()

    def _headers_frame(self, flags: int, number: int, data: bytes, start: int, stop: int) -> None:
        if not number & 1:
            raise ConnectionFault(PROTOCOL_ERROR, "HEADERS on a stream that no client opens")
        if flags & PADDED:
            padding, start = self._padding(data, start, stop - start)
            stop -= padding
        fault: StreamFault | None = None
        if flags & HAS_PRIORITY:
            if stop - start < _PRIORITY_BYTES:
                raise ConnectionFault(FRAME_SIZE_ERROR, "HEADERS without their priority")
            if U32.unpack_from(data, start)[0] & MOST == number:
                fault = StreamFault(PROTOCOL_ERROR)
            start += _PRIORITY_BYTES
        if stop - start > _MAX_BLOCK:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a block of headers is too long")
        if flags & END_HEADERS:
            self._begin(number, bool(flags & END_STREAM), data[start:stop], fault)
        else:
            self._block = _OpenBlock(number, bool(flags & END_STREAM), data[start:stop])

    def _continuation(self, flags: int, number: int, payload: bytes) -> None:
        block = self._block
        if block is None:
            raise ConnectionFault(PROTOCOL_ERROR, "CONTINUATION of nothing")
        block.pieces.append(payload)
        block.size += len(payload)
        if block.size > _MAX_BLOCK or len(block.pieces) > _MAX_CONTINUATIONS:
            raise ConnectionFault(ENHANCE_YOUR_CALM, "a block of headers is too long")
        if flags & END_HEADERS:
            self._block = None
            self._begin(number, block.ended, b"".join(block.pieces))

    def _begin(self, number: int, ended: bool, block: bytes, fault: StreamFault | None = None) -> None:
        """A block of headers is complete: a call begins, or the request of one ends with trailers."""
        head = self._headers.known.get(block)
        if head is None:
            head = self._headers.read(block)
            self._spent += head.size // _HEADER_BYTES
            self.control.charge_headers(head.size)
        stream = self.streams.get(number)
        if stream is not None:
            self._trailers(stream, ended, head)
            return
        if number <= self.control.last:
            if number in self.sender.abandoned:
                self.control.charge()
                return
            raise ConnectionFault(STREAM_CLOSED, "HEADERS on a closed stream")
        self.control.last = number
        if self.control.parted or len(self.streams) >= MAX_STREAMS:
            raise StreamFault(REFUSED_STREAM)
        if head.malformed or fault is not None:
            raise StreamFault(PROTOCOL_ERROR)
        if head.route is None:
            self._application.route(head)
        stream = self.streams[number] = Stream(number, head, self.sender.initial)
        stream.ended = ended
        if not head.lazy:
            self._application.opened(self, stream)
        if ended and self.streams.get(number) is stream:
            self._body(stream, b"", 0, 0, True)

    def _trailers(self, stream: Stream, ended: bool, head: RequestHead) -> None:
        if stream.ended:
            raise StreamFault(STREAM_CLOSED)
        if not ended or bad_trailers(head.fields):
            raise StreamFault(PROTOCOL_ERROR)
        self._body(stream, b"", 0, 0, True)
