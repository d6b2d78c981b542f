"""The half of a connection that sends: answers, as far as the client's windows allow."""

from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Final

from repoagent_server.codec.binary import Buffer
from repoagent_server.grpc.http2.frames import (
    DATA,
    DEFAULT_FRAME,
    DEFAULT_WINDOW,
    END_HEADERS,
    END_STREAM,
    ENHANCE_YOUR_CALM,
    FLOW_CONTROL_ERROR,
    FRAME_HEAD,
    HEADERS,
    MOST,
    NO_ERROR,
    PROTOCOL_ERROR,
    RST_STREAM,
    U32,
    ConnectionFault,
    StreamFault,
    frame,
    number_frame,
)
from repoagent_server.grpc.http2.head import Stream, literal
from repoagent_server.grpc.http2.headers import status_fields
from repoagent_server.shared.reserve import HELD_FLAG, Reserve

READS_TOO_SLOWLY: Final = f"too much waits for clients that read slowly ({HELD_FLAG})"
_RESOURCE_EXHAUSTED: Final = 8

_PREFIX: Final = Struct(">BI")
_PREFIX_BYTES: Final = _PREFIX.size
_PIECE: Final = Struct(">IBIBI")
"""The head of a DATA frame that holds one message, and the prefix of that."""
_JOINED: Final = 1 << 16
"""Bytes up to which the parts of a message are put together."""
_SHARE: Final = 1 << 16
"""Bytes that a stream sends before it is another one's turn."""
_BURST: Final = 1 << 18
"""Bytes to write before the socket is looked at again."""
_ABANDONED: Final = 1024
"""Streams that were answered before the client had sent all of its request: what still comes is ignored."""

# The answer to a unary call that fits everything: three packings, in which only stream and lengths vary. The blocks
# name entries of the static table and literals only, so they are right whatever the client's dynamic table is.
_BEGIN: Final = b"\x88" + b"\x0f\x10\x10application/grpc"
_GOOD: Final = literal(b"grpc-status", b"0")
_HEAD: Final = Struct(f">5sI{len(_BEGIN)}sIBIBI")
_HEAD_START: Final = U32.pack(len(_BEGIN) << 8 | HEADERS) + bytes((END_HEADERS,))
_TAIL: Final = Struct(f">5sI{len(_GOOD)}s")
_TAIL_START: Final = U32.pack(len(_GOOD) << 8 | HEADERS) + bytes((END_HEADERS | END_STREAM,))
_STATUS_NAME: Final = 8
"""Index of ``:status`` in the static table."""


def _nothing() -> None:
    pass


class Sender:
    """Frames go to :attr:`out`, from where the event loop's side takes them. It knows nothing of what is received."""

    def __init__(self, reserve: Reserve) -> None:
        self.streams: dict[int, Stream] = {}
        """Those that are not answered yet."""
        self.out: list[Buffer] = []
        self.volume = 0
        """Bytes of answers in ``out``."""
        self.answers = 0
        """Frames with answers so far."""
        self.window = DEFAULT_WINDOW
        self.initial = DEFAULT_WINDOW
        self.max_frame = DEFAULT_FRAME
        self.writable = True
        """The socket takes more."""
        self.dirty = False
        """It is known that there is something to write."""
        self.wake: Callable[[], None] = _nothing
        """Called when there is something to write."""
        self._reserve = reserve
        self._blocked: OrderedDict[int, Stream] = OrderedDict()
        self.abandoned: OrderedDict[int, None] = OrderedDict()
        """Streams that were answered before their end: what still comes is ignored."""

    # What the application calls.

    def reply(self, stream: Stream, message: bytes) -> None:
        """Answer a unary call: its one message and a good end."""
        if self.streams.get(stream.id) is not stream:
            return
        size = len(message)
        length = size + _PREFIX_BYTES
        if (
            length <= self.window
            and length <= stream.window
            and length <= self.max_frame
            and length <= _SHARE
            and stream.ended
            and self.writable
            and not stream.begun
        ):
            number = stream.id
            del self.streams[number]
            self.window -= length
            self.answers += 1
            self.volume += length
            out = self.out
            if stream.fields:
                out.append(frame(HEADERS, END_HEADERS, number, _BEGIN + stream.fields))
                out.append(_PIECE.pack(length << 8, 0, number, 0, size))
            else:
                out.append(_HEAD.pack(_HEAD_START, number, _BEGIN, length << 8, 0, number, 0, size))
            out.append(message)
            out.append(_TAIL.pack(_TAIL_START, number, _GOOD))
            if not self.dirty:
                self.touch()
        elif self.send(stream, (message,)):
            self.finish(stream)

    def begin(self, stream: Stream, encoding: bytes = b"") -> None:
        """Send the headers of the answer, once. ``encoding``: how its compressed messages are."""
        if not stream.begun:
            stream.begun = True
            block = _BEGIN + stream.fields
            if encoding:
                block += literal(b"grpc-encoding", encoding)
            self.out.append(frame(HEADERS, END_HEADERS, stream.id, block))
            self.answers += 1
            self.touch()

    def send(self, stream: Stream, parts: Sequence[Buffer], *, compressed: bool = False) -> bool:
        """Send a message that consists of ``parts``, which must not change until they are out.

        What the windows do not allow waits. False if too much would: the call then ends with an error.
        """
        if self.streams.get(stream.id) is not stream:
            return False
        views = [memoryview(part).cast("B") for part in parts]
        size = sum(map(len, views))
        if not self._reserve.take(stream.waiting, size + _PREFIX_BYTES):
            call, stream.call = stream.call, None
            self.finish(stream, _RESOURCE_EXHAUSTED, READS_TOO_SLOWLY)
            if call is not None:
                call.lost()
            return False
        self.begin(stream)
        prefix = _PREFIX.pack(compressed, size)
        if size <= _JOINED:
            views = [memoryview(b"".join((prefix, *views)))]
        else:
            views.insert(0, memoryview(prefix))
        stream.waiting += size + _PREFIX_BYTES
        if stream.queue:
            stream.queue.extend(view for view in views if view)
        else:
            stream.queue = deque(view for view in views if view)
            self._push(stream)
        return True

    def send_small(self, stream: Stream, message: bytes) -> bool:
        """Send a message at once; False if it is too large for that, or must wait for anything."""
        length = len(message) + _PREFIX_BYTES
        if (
            stream.queue
            or length > self.window
            or length > stream.window
            or length > self.max_frame
            or length > _SHARE
            or not self.writable
            or self.streams.get(stream.id) is not stream
        ):
            return False
        self.begin(stream)
        self.window -= length
        stream.window -= length
        self.answers += 1
        self.volume += length
        self.out.append(_PIECE.pack(length << 8, 0, stream.id, 0, len(message)))
        self.out.append(message)
        if not self.dirty:
            self.touch()
        return True

    def finish(self, stream: Stream, status: int = 0, text: str = "", more: bytes = b"") -> None:
        """End a call. Without a message before it, this is all of the answer. ``more``: further fields, encoded."""
        if self.streams.get(stream.id) is not stream:
            return
        block = status_fields(status, text) + more
        self._end(stream, block if stream.begun else _BEGIN + stream.fields + block)

    def refuse(self, stream: Stream, status: bytes) -> None:
        """End what is no call with a status of HTTP."""
        if self.streams.get(stream.id) is stream:
            self._end(stream, bytes((_STATUS_NAME, len(status))) + status)

    def drop(self, stream: Stream) -> None:
        """End a call without the rest of its answer, for which others need the room."""
        call, stream.call = stream.call, None
        self.forget(stream)
        if not stream.ended:
            self.abandon(stream.id)
        self.out.append(number_frame(RST_STREAM, stream.id, ENHANCE_YOUR_CALM))
        self.touch()
        if call is not None:
            call.lost()

    # What moves answers on.

    def go_on(self) -> None:
        """Send what may be sent by now, in turns."""
        blocked = self._blocked
        while blocked and self.window > 0 and self.writable and self.volume < _BURST:
            self._push(blocked.popitem(last=False)[1])

    @property
    def stuck(self) -> bool:
        """Whether :meth:`go_on` has something to do when the socket takes more."""
        return bool(self._blocked) and self.window > 0

    def taken(self) -> list[Buffer]:
        """What is to be written."""
        out, self.out = self.out, []
        self.volume = 0
        return out

    def touch(self) -> None:
        """There is something to write."""
        if not self.dirty:
            self.dirty = True
            self.wake()

    def _push(self, stream: Stream) -> None:
        """Send of a stream's queue what its share allows; at the end of the queue, the end of the stream."""
        queue = stream.queue or deque()
        share = 0
        self.touch()
        while queue and share < _SHARE:
            room = min(self.window, stream.window, self.max_frame)
            if room <= 0 or not self.writable:
                break
            piece = queue[0]
            if len(piece) > room:
                queue[0] = piece[room:]
                piece = piece[:room]
            else:
                queue.popleft()
            self.out.append(FRAME_HEAD.pack(len(piece) << 8 | DATA, 0, stream.id))
            self.out.append(piece)
            self.answers += 1
            self.window -= len(piece)
            stream.window -= len(piece)
            share += len(piece)
        self.volume += share
        stream.waiting -= share
        stream.sent += share
        self._reserve.give(share)
        if queue:
            if stream.window > 0:
                self._blocked[stream.id] = stream
        else:
            self._pushed(stream)

    def _pushed(self, stream: Stream) -> None:
        """All that a stream had to send is out."""
        stream.queue = None
        if stream.tail:
            self.out.append(stream.tail)
            self._close(stream)
        elif stream.call is not None:
            stream.call.drained()

    def _end(self, stream: Stream, block: bytes) -> None:
        stream.begun = True
        self.touch()
        tail = frame(HEADERS, END_HEADERS | END_STREAM, stream.id, block)
        self.answers += 1
        if stream.queue:
            stream.tail = tail
        else:
            self.out.append(tail)
            self._close(stream)

    def _close(self, stream: Stream) -> None:
        """The answer is complete. A client that still sends its request need not."""
        self.forget(stream)
        if not stream.ended:
            self.abandon(stream.id)
            self.out.append(number_frame(RST_STREAM, stream.id, NO_ERROR))

    def forget(self, stream: Stream) -> None:
        """Nothing more is sent on it."""
        self.streams.pop(stream.id, None)
        self._blocked.pop(stream.id, None)
        self._reserve.give(stream.waiting)
        stream.waiting = 0
        stream.queue = None

    def abandon(self, number: int) -> None:
        """Ignore what still comes of a stream, which has ended for this side."""
        self.abandoned[number] = None
        if len(self.abandoned) > _ABANDONED:
            self.abandoned.popitem(last=False)

    # What the client does to the windows.

    def change_windows(self, initial: int) -> None:
        """All windows of streams change, also those of running ones; they may fall below zero.

        Raises:
            ConnectionFault: one is too large.
        """
        change, self.initial = initial - self.initial, initial
        for stream in self.streams.values():
            stream.window += change
            if stream.window > MOST:
                raise ConnectionFault(FLOW_CONTROL_ERROR, "a window is too large")
            if stream.queue and stream.window > 0:
                self._blocked[stream.id] = stream
        self.go_on()

    def widen(self, more: int) -> None:
        """The connection's window is larger by ``more``.

        Raises:
            ConnectionFault: that is nothing, or too much.
        """
        self.window += more
        if not more:
            raise ConnectionFault(PROTOCOL_ERROR, "WINDOW_UPDATE of 0")
        if self.window > MOST:
            raise ConnectionFault(FLOW_CONTROL_ERROR, "the connection's window is too large")
        self.go_on()

    def widen_stream(self, number: int, more: int) -> None:
        """The window of a stream is larger by ``more``.

        Raises:
            StreamFault: that is nothing, or too much.
        """
        if not more:
            raise StreamFault(PROTOCOL_ERROR)
        stream = self.streams.get(number)
        if stream is None:
            return  # it has ended, which the client may not know yet
        stream.window += more
        if stream.window > MOST:
            raise StreamFault(FLOW_CONTROL_ERROR)
        if stream.queue and stream.window > 0:
            self._blocked[number] = stream
            self.go_on()
