"""ModelInfer as nearly all calls are: one small message, one small answer, and no coroutine."""

import asyncio
from typing import TYPE_CHECKING, Final

from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.frames import U32
from repoagent_server.grpc.http2.head import Stream, literal
from repoagent_server.grpc.http2.messages import PREFIX_BYTES, MessageFault
from repoagent_server.grpc.http2.running_call import DEADLINE, RunningCall
from repoagent_server.grpc.infer import OneAnswer, status_of
from repoagent_server.grpc.request import Decoded
from repoagent_server.grpc.response import details
from repoagent_server.shared.request_id import RECEIPT
from repoagent_server.shared.request_log import RunningRequest

if TYPE_CHECKING:
    from repoagent_server.grpc.http2.dispatcher import Dispatcher

_CANCELLED: Final = 1


class QuickCall(OneAnswer):
    """Answers without a task. What it holds leads back to it, so it lets go of it at its end."""

    __slots__ = (
        "_connection", "_deadline", "_decoded", "_dispatcher", "_request", "_running", "_started", "_stream",
        "_timer",
    )  # fmt: skip

    def __init__(self, dispatcher: "Dispatcher", connection: Connection, stream: Stream) -> None:
        super().__init__(dispatcher.calls.inference.mailbox)
        self._dispatcher = dispatcher
        self._connection = connection
        self._stream = stream
        self._decoded: Decoded | None = None
        self._request: InferRequest | None = None
        self._running: RunningRequest | None = None
        """What the request log gets of it."""
        self._started = False
        self._deadline: float | None = None
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, seconds: float) -> None:
        """Give the call a deadline."""
        loop = self._dispatcher.loop
        self._deadline = loop.time() + seconds
        self._timer = loop.call_at(self._deadline, self._expire)

    def start(self, message: bytes) -> None:
        """Answer ``message``."""
        calls, head = self._dispatcher.calls, self._stream.head
        if calls.log is not None:
            self._running = RunningRequest(len(message), calls.inference.name_now(head.caller), head.request_id)
        calls.in_flight.started()
        self._started = True
        try:
            self._dispatcher.check_running()
            decoded = self._decoded = calls.read(message, head.caller)
            request = calls.submit(decoded, head.metadata, self, head.caller, head.request_id)
            if not self._is_settled:
                self._request = request
        except Exception as error:
            self._fail(error)

    def settled(self, response: InferResponse) -> None:
        if self._running is not None:
            self._running.served(response)
        if response.error is not None:
            self._fail(response.error)
            return
        calls, decoded = self._dispatcher.calls, self._decoded
        assert decoded is not None
        if response.receipt:
            self._stream.fields += literal(RECEIPT, response.receipt.encode())
        if calls.is_large(response):
            self._dispatcher.spawn(self._send_large(response, decoded))
            return
        try:
            message = calls.write(response, decoded)
            self._dispatcher.check_size(len(message))
        except Exception as error:
            self._fail(error)
            return
        self._done(0, len(message))
        self._connection.sender.reply(self._stream, message)

    async def _send_large(self, response: InferResponse, decoded: Decoded) -> None:
        try:
            parts = await self._dispatcher.calls.written(response, decoded)
            size = sum(map(len, parts))
            self._dispatcher.check_size(size)
        except Exception as error:
            self._fail(error)
            return
        self._done(0, size)
        if self._connection.sender.send(self._stream, parts):
            self._connection.sender.finish(self._stream)

    # What the connection calls.

    def data(self, data: bytes, start: int, stop: int, ended: bool) -> None:
        if self._started:
            return
        message = only_message(data, start, stop, ended, self._dispatcher.small)
        if message is not None:
            self.start(message)
            return
        if self._timer is not None:
            self._timer.cancel()
        call = RunningCall(self._dispatcher, self._connection, self._stream, self._deadline)
        self._stream.call = call
        call.data(data, start, stop, ended)

    def lost(self) -> None:
        self._give_up(_CANCELLED)

    @property
    def unfinished(self) -> bool:
        return False

    def drained(self) -> None:
        pass

    def _expire(self) -> None:
        self._connection.sender.finish(self._stream, *DEADLINE)
        self._give_up(DEADLINE[0])

    def _give_up(self, status: int) -> None:
        request = self._request
        self._is_settled = True
        self._done(status)
        if request is not None:
            request.cancel()

    def _fail(self, error: Exception) -> None:
        self._is_settled = True
        if isinstance(error, MessageFault):
            status, text = error.status, str(error)
        else:
            code, full = status_of(error)
            status, text = code.value[0], details(full)
        self._done(status)
        self._connection.sender.finish(self._stream, status, text)

    def _done(self, status: int, size: int = 0) -> None:
        """The answer, of ``size`` bytes, is there, or wanted no more."""
        if self._running is not None:
            self._log(self._running, status, size)
        self._decoded = self._request = self._running = None
        self._stream.call = None
        if self._timer is not None:
            self._timer.cancel()
        if self._started:
            self._started = False
            self._dispatcher.calls.in_flight.finished()

    def _log(self, running: RunningRequest, status: int, size: int) -> None:
        log, decoded = self._dispatcher.calls.log, self._decoded
        if decoded is not None and not running.model:
            running.asks(decoded.asked)
        elif decoded is not None:
            running.request = running.request or decoded.asked.id
        running.status = status
        if log is not None:
            running.end(log, size)


def only_message(data: bytes, start: int, stop: int, ended: bool, below: int) -> bytes | None:
    """The message, if ``data[start:stop]`` is all of the request: one of less than ``below`` bytes, uncompressed."""
    size = stop - start - PREFIX_BYTES
    if ended and 0 <= size < below and not data[start] and U32.unpack_from(data, start + 1)[0] == size:
        return data[start + PREFIX_BYTES : stop]
    return None
