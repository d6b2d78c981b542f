"""A call that a coroutine answers: any method, any size, streams and compression."""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from google.protobuf.message import DecodeError

from repoagent_server.codec.binary import Buffer
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.head import Stream, literal
from repoagent_server.grpc.http2.messages import (
    HELD,
    INTERNAL,
    RESOURCE_EXHAUSTED,
    UNIMPLEMENTED,
    Assembly,
    MessageFault,
    compress,
    decompress,
    too_large,
)
from repoagent_server.grpc.wire import LONG_MESSAGE
from repoagent_server.shared.request_id import RECEIPT
from repoagent_server.shared.reserve import WORTH_COUNTING, Memory

if TYPE_CHECKING:
    from repoagent_server.grpc.http2.dispatcher import Dispatcher

_Made = TypeVar("_Made", bytes, Memory)

logger = logging.getLogger(__name__)

DEADLINE: Final = (4, "Deadline Exceeded")
_UNKNOWN: Final = 2
_UNREAD: Final = 1 << 16
"""Bytes of messages that may wait for the handler before the client must wait."""
_OBJECT: Final = 128
"""Bytes that a message takes in memory beside its own."""
_AT_ONCE: Final = 32
"""Messages of a stream that are taken before it is another call's turn."""
_UNSENT: Final = 1 << 16
"""Bytes that may wait for the client before the handler must wait."""
_INLINE: Final = 1 << 12
"""Compressed bytes that the event loop's thread handles itself."""


class RunningCall:
    """Made when its headers are there; the handler runs from then on."""

    def __init__(
        self, dispatcher: "Dispatcher", connection: Connection, stream: Stream, deadline: float | None = None
    ) -> None:
        """``deadline``: by the loop's clock."""
        self._dispatcher = dispatcher
        self._connection = connection
        self._stream = stream
        self._handler = stream.head.route.handler
        self.caller: Final = stream.head.caller
        """The client behind the call, where access is controlled."""
        self._assembly = Assembly(dispatcher.max_message)
        self._inbox: deque[tuple[Buffer, bool]] = deque()
        self._read = 0
        self._unread = 0
        self._hold = dispatcher.reserve.hold()
        self._message: Buffer | None = None
        self._ended = False
        self._taker: Callable[[bytes], bool] | None = None
        self._idle = False
        """The handler waits for a message, and none is there."""
        self._arrived = asyncio.Event()
        self._room = asyncio.Event()
        loop = dispatcher.loop
        self._timer = loop.call_at(deadline, self._expire) if deadline is not None else None
        self._task = loop.create_task(self._run())
        dispatcher.tasks.add(self._task)
        self._task.add_done_callback(dispatcher.tasks.discard)

    # What the connection calls.

    def data(self, data: bytes, start: int, stop: int, ended: bool) -> None:
        try:
            for count, message in enumerate(self._assembly.feed(data, start, stop)):
                if count < _AT_ONCE and self._idle and self._taken(*message):
                    continue
                self._idle = False
                self._inbox.append(message)
                self._unread += len(message[0]) + _OBJECT
            if ended and self._assembly.held:
                raise MessageFault(INTERNAL, "the request ends within a message")
            if not self._count():
                raise MessageFault(RESOURCE_EXHAUSTED, HELD)
        except MessageFault as fault:
            self._give_up(fault.status, str(fault))
            return
        self._ended = ended
        self._credit()
        if not self._idle or ended:
            self._arrived.set()

    def _taken(self, message: Buffer, compressed: bool) -> bool:
        taker = self._taker
        return taker is not None and not compressed and len(message) < LONG_MESSAGE and taker(bytes(message))

    def lost(self) -> None:
        self._release()  # now: a task that has not begun never gets to its own end
        self._task.cancel()

    def drained(self) -> None:
        self._room.set()

    @property
    def unfinished(self) -> bool:
        """A part of a message is there."""
        return bool(self._assembly.held)

    def end_if_lagging(self) -> None:
        """End the call if its client does not go on with a message, and others need the room: see `Hold.lags`."""
        if self._hold.lags() and self._assembly.held and self._unread <= _UNREAD:
            self._give_up(RESOURCE_EXHAUSTED, HELD)

    # What the handler uses: of grpcio's ``ServicerContext`` what the handlers of this server need.

    @property
    def request_id(self) -> str:
        """The client's ``x-request-id``, "" if there is none."""
        return self._stream.head.request_id

    @property
    def address(self) -> str:
        """Where the connection comes from."""
        return self._connection.address

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        """Of the client: text, or bytes under names that end with ``-bin``."""
        return tuple(self._stream.head.metadata())

    async def abort(self, code: Any, details: str = "") -> None:
        """End the call with a status of ``grpc.StatusCode``.

        Raises:
            Aborted: always.
        """
        self._finish(code.value[0], details)
        raise Aborted

    def name_receipt(self, receipt: str) -> None:
        """The answer names the receipt of what answered. Before its first message."""
        self._stream.fields += literal(RECEIPT, receipt.encode())

    def take_now(self, taker: Callable[[bytes], bool]) -> None:
        """Hand small messages to ``taker`` as they come, while none waits for the handler.

        A message that ``taker`` does not take waits for the handler, as all that follow it do.
        """
        self._taker = taker

    def write_now(self, message: bytes) -> bool:
        """Send an encoded message if nothing is in its way, without a task's turn; False if it was not sent.

        One that is too large is not: :meth:`write` reports that.
        """
        if self._compresses or 0 <= self._dispatcher.max_message < len(message):
            return False
        return self._connection.sender.send_small(self._stream, message)

    async def write(self, message: Any) -> None:
        """Send a message; returns when the client has room for another one."""
        parts = await self._encoded(message)
        stream, connection = self._stream, self._connection
        coding = b"gzip" if self._compresses else b""
        connection.sender.begin(stream, coding)
        compressed = bool(coding)
        if compressed:
            parts = [await self._aside(sum(map(len, parts)), lambda: compress(parts, self._dispatcher.compression))]
        self._room.clear()
        if connection.sender.send(stream, parts, compressed=compressed):
            del parts
            while stream.waiting > _UNSENT:
                self._room.clear()
                await self._room.wait()

    # The handler.

    async def _run(self) -> None:
        status, text = 0, ""
        try:
            await self._answer()
        except Aborted:
            pass
        except MessageFault as fault:
            status, text = fault.status, str(fault)
        except DecodeError:
            status, text = INTERNAL, "the message is not valid"
        except Exception as error:
            logger.error("a call of %s failed: %s", self._stream.head.route.name, error, exc_info=error)
            status, text = _UNKNOWN, f"unexpected {type(error).__name__}; the server's log has the details"
        finally:
            self._release()
        self._finish(status, text)  # does nothing after an abort

    async def _answer(self) -> None:
        handler = self._handler
        method = next(
            method
            for method in (handler.unary_unary, handler.unary_stream, handler.stream_unary, handler.stream_stream)
            if method is not None
        )
        if handler.request_streaming:
            answer = method(self._messages(), self)
        else:
            answer = method(await self._only_message(), self)
        if inspect.isasyncgen(answer):
            async for message in answer:
                await self.write(message)
            return
        message = await answer
        if not handler.response_streaming:
            await self.write(message)
        self._connection.sender.begin(self._stream)

    async def _messages(self) -> AsyncIterator[Any]:
        while (message := await self._next()) is not None:
            yield self._parsed(message)

    async def _only_message(self) -> Any:
        message = await self._next()
        self._message = message  # what is made of it has no count of its own
        if message is None or await self._next() is not None:
            raise MessageFault(UNIMPLEMENTED, "the method takes exactly one message")
        return self._parsed(message)

    async def _next(self) -> Buffer | None:
        """The next message, None at the end of the request."""
        while not self._inbox:
            if self._ended:
                return None
            self._arrived.clear()
            self._idle = True
            await self._arrived.wait()
            self._idle = False
        self._read += 1
        if not self._read % _AT_ONCE:
            await asyncio.sleep(0)
        message, compressed = self._inbox.popleft()
        self._unread -= len(message) + _OBJECT
        if isinstance(message, Memory) and len(message) >= WORTH_COUNTING:
            self._hold.hand_over(len(message), message)
        self._count()
        self._credit()
        if not compressed:
            return message
        encoding, limit, reserve = self._stream.head.encoding, self._dispatcher.max_message, self._dispatcher.reserve
        return await self._aside(len(message), lambda: decompress(message, encoding, limit, reserve))

    def _parsed(self, message: Buffer) -> Any:
        parse = self._handler.request_deserializer
        return message if parse is None else parse(message)

    async def _encoded(self, message: Any) -> list[Buffer]:
        serialize = self._handler.response_serializer
        encoded = message if serialize is None else serialize(message)
        parts: list[Buffer] = encoded if isinstance(encoded, list) else [encoded]
        size, limit = sum(map(len, parts)), self._dispatcher.max_message
        if 0 <= limit < size:
            raise too_large("Sent message", size, limit)
        return parts

    async def _aside(self, size: int, work: Callable[[], _Made]) -> _Made:
        """What compresses or decompresses, on a thread unless ``size`` bytes are few."""
        if size <= _INLINE:
            return work()
        return await self._dispatcher.loop.run_in_executor(self._dispatcher.calls.long, work)

    @property
    def _compresses(self) -> bool:
        return bool(self._dispatcher.compression) and self._stream.head.accepts_gzip

    # What is held.

    def _count(self) -> bool:
        """Hold what is there of requests by now; False if that is too much."""
        return self._hold.resize(self._assembly.held + self._unread)

    def _credit(self) -> None:
        if self._unread <= _UNREAD:
            self._connection.credit(self._stream)

    def _expire(self) -> None:
        self._give_up(*DEADLINE)

    def _give_up(self, status: int, text: str) -> None:
        self._finish(status, text)
        self.lost()

    def _finish(self, status: int, text: str) -> None:
        self._connection.sender.finish(self._stream, status, text)

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._inbox.clear()
        self._unread = 0
        self._hold.release()
        self._message = None
        self._ended = True
        self._taker = None
        self._stream.call = _OVER


class _Over:
    """In the place of a call that has been answered."""

    unfinished = False

    def data(self, data: bytes, start: int, stop: int, ended: bool) -> None:
        pass

    def lost(self) -> None:
        pass

    def drained(self) -> None:
        pass


_OVER: Final = _Over()


class Aborted(Exception):
    """The handler has ended its call with a status."""
