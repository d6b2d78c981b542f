"""ModelStreamInfer: any number of requests in flight on one stream, responses as they come."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Final, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from repoagent.errors import RepoAgentError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent_server.codec.binary import Buffer
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.infer import InferCalls, read_long
from repoagent_server.grpc.request import Decoded
from repoagent_server.grpc.response import code_for, error_for_client, error_message, response_message, status_of
from repoagent_server.grpc.wire import LONG_MESSAGE
from repoagent_server.handlers.inference import Answer, CallContext
from repoagent_server.shared.request_id import RECEIPT
from repoagent_server.shared.request_log import RunningRequest

_RECEIPT: Final = RECEIPT.decode()
_ERRORS_ARE_STATUSES: Final = "triton_grpc_error"
_OVERRUN: Final = "the client reads the stream too slowly: too many responses wait for it"
_WAITING_LIMIT: Final = 256
"""Responses of one stream that may wait for a slow client before no more of its requests are read."""
_INVALID: Final = "the message is not valid"

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types


async def stream_infer(calls: InferCalls, messages: AsyncIterator[Buffer], context: Context) -> None:
    """ModelStreamInfer: any number of requests in flight, responses as they come."""
    try:
        call = calls.inference.context(context.invocation_metadata, context.caller, context.request_id)
    except RepoAgentError as error:
        await context.abort(*status_of(error))
    statuses = _wants_statuses(context.invocation_metadata() or ())
    stream = InferStream(calls, call, _write_now(context), errors_are_statuses=statuses)
    _take_now(context, stream.take)
    reading = asyncio.ensure_future(stream.read(messages))
    writing = asyncio.ensure_future(_write(stream, context))
    try:
        await asyncio.wait((writing, stream.overrun), return_when=asyncio.FIRST_COMPLETED)
        if stream.overrun.done():
            stream.close()  # Now: how long the status takes is up to the client, who does not read.
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _OVERRUN)
        writing.result()
        if stream.fault is not None:
            raise stream.fault
        if stream.failure is not None:
            await context.abort(*status_of(stream.failure))
    except DecodeError:
        await context.abort(grpc.StatusCode.INTERNAL, _INVALID)
    finally:
        reading.cancel()
        writing.cancel()
        stream.close()


def _write_now(context: Context) -> Callable[[bytes], bool]:
    """What sends a message at once, if nothing is in its way. A transport need not have it."""
    return getattr(context, "write_now", _never)


def _never(_: bytes) -> bool:
    return False


def _take_now(context: Context, taker: Callable[[bytes], bool]) -> None:
    """Have small messages handed to ``taker`` as they arrive, where the transport can: without a task's turn."""
    take = getattr(context, "take_now", None)
    if take is not None:
        take(taker)


def _wants_statuses(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether the client wants an error to be the status of its stream, which then ends."""
    return any(name == _ERRORS_ARE_STATUSES and value in ("true", b"true") for name, value in metadata)


async def _write(stream: "InferStream", context: Context) -> None:
    while (message := await stream.next()) is not None:
        await context.write(message)


class InferStream:
    """One stream: what was asked on it, and the responses that wait to be written."""

    def __init__(
        self, calls: InferCalls, call: CallContext, write_now: Callable[[bytes], bool], *, errors_are_statuses: bool
    ) -> None:
        self._calls = calls
        self._call = call
        self._write_now = write_now
        self._errors_are_statuses = errors_are_statuses
        self._bytes = 0
        self._hold = calls.inference.reserve.hold_unread()
        self._running: dict[InferRequest, None] = {}
        self._waiting: asyncio.Queue[tuple[bytes | None, int]] = asyncio.Queue()
        self._writing = False
        """A message has been taken from the queue, and is not written yet."""
        self.overrun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when more waits for the client than may."""
        self._room = asyncio.Event()
        self._room.set()
        self._all_read = False
        self.failure: RepoAgentError | None = None
        """What ended the stream, where errors do."""
        self.fault: Exception | None = None
        """What made the client's messages unreadable."""

    async def read(self, messages: AsyncIterator[Buffer]) -> None:
        """Submit what the client sends, as long as it also takes what it is sent."""
        try:
            async for message in messages:
                await self._room.wait()
                if len(message) >= LONG_MESSAGE:
                    await self._submit_long(message)
                else:
                    self._submit(bytes(message))
        except Exception as fault:
            self._end(fault)
            return
        self._all_read = True
        self._end_if_done()

    def take(self, message: bytes) -> bool:
        """Submit a small message at once; False if it must wait."""
        if self.failure is not None or self.fault is not None:
            return True  # the stream is at its end: nothing more is taken from it
        if not self._room.is_set():
            return False
        try:
            self._submit(message)
        except Exception as fault:
            self._end(fault)
        return True

    async def next(self) -> bytes | None:
        """The next message to write, None at the end. What came before it has been written."""
        self._writing = False
        message, size = await self._waiting.get()
        self._writing = True
        self._bytes -= size
        self._hold.keeps_up(self._bytes)
        if self._waiting.qsize() < _WAITING_LIMIT and not self._room.is_set():
            self._room.set()
            self._fall_behind(False)
        return message

    def _fall_behind(self, behind: bool) -> None:
        for request in tuple(self._running):
            request.fall_behind(behind)

    def close(self) -> None:
        """Give up what still runs and what waits."""
        for request in self._running:
            request.cancel()
        self._hold.release()
        self._bytes = 0
        self._waiting = asyncio.Queue()
        self.overrun.cancel()

    def _end(self, fault: Exception) -> None:
        """End the stream: what follows on it cannot be read."""
        if self.fault is None:
            self.fault = fault
            self._waiting.put_nowait((None, 0))

    def _running_request(self, message: Buffer) -> RunningRequest | None:
        """What the request log gets of a message; None without that log."""
        if self._calls.log is None:
            return None
        return RunningRequest(len(message), self._calls.inference.name_now(self._call.client), self._call.request_id)

    def _refuse(self, error: RepoAgentError, request_id: str, running: RunningRequest | None) -> None:
        self.put(error_message(error, request_id), error)
        if running is not None:
            running.status = code_for(error).value[0]
            running.request = running.request or request_id
            self.log(running, 0)

    def log(self, running: RunningRequest, sent: int) -> None:
        """Write the line of a request that has been answered with so many bytes."""
        log = self._calls.log
        if log is not None:
            running.end(log, sent)

    def put(self, message: bytes, error: RepoAgentError | None = None) -> None:
        """Send ``message``, or its error as the status that ends the stream, if the client wants errors so."""
        if self.overrun.done() or self.failure is not None or self.fault is not None:
            return
        if error is not None and self._errors_are_statuses:
            self.failure = error
            self._waiting.put_nowait((None, 0))
            return
        if not self._writing and self._waiting.empty() and self._write_now(message):
            return
        size = len(message)
        if not self._hold.keeps_up(self._bytes):
            self.overrun.set_result(None)
            return
        self._bytes += size
        self._waiting.put_nowait((message, size))
        if self._waiting.qsize() >= _WAITING_LIMIT and self._room.is_set():
            self._room.clear()
            self._fall_behind(True)

    def finished(self, request: InferRequest) -> None:
        if self._running.pop(request, False) is None:  # the first report of its end
            self._calls.in_flight.finished()
        self._end_if_done()

    async def _submit_long(self, data: Buffer) -> None:
        running = self._running_request(data)
        try:
            decoded = await read_long(self._calls.inference, data, self._calls.long, self._call.client)
        except Exception as error:
            self._refuse(error_for_client(error), "", running)
            return
        self._start(decoded, running)

    def _submit(self, message: bytes) -> None:
        """Raises :class:`DecodeError`: it is not a message."""
        running = self._running_request(message)
        try:
            decoded = self._calls.read(message, self._call.client)
        except Exception as error:
            self._refuse(error_for_client(error), pb.ModelInferRequest.FromString(message).id, running)
            return
        self._start(decoded, running)

    def _start(self, decoded: Decoded, running: RunningRequest | None) -> None:
        inference = self._calls.inference
        if running is not None:
            running.asks(decoded.asked)
        sender = _StreamSender(self, self._calls, decoded, running)
        try:
            request = sender.request = inference.prepare(decoded.asked, sender, self._call, decoded.requested)
        except Exception as error:
            self._refuse(error_for_client(error), decoded.asked.id, running)
            return
        self._running[request] = None
        self._calls.in_flight.started()
        try:
            inference.core.submit(request)
        except Exception as error:
            self._refuse(error_for_client(error), request.asked.id, running)
            self.finished(request)
        sender.accepted = True

    def _end_if_done(self) -> None:
        if self._all_read and not self._running:
            self._waiting.put_nowait((None, 0))


class _StreamSender(Answer):
    """The sender of one request of a stream."""

    __slots__ = ("_calls", "_decoded", "_running", "_sent", "_stream", "accepted", "request")

    def __init__(
        self, stream: InferStream, calls: InferCalls, decoded: Decoded, running: RunningRequest | None
    ) -> None:
        super().__init__(calls.inference.mailbox)
        self._running = running
        self._sent = 0
        self._stream = stream
        self._calls = calls
        self._decoded = decoded
        self.request: InferRequest
        """Set before it is submitted."""
        self.accepted = False
        """The core has the request: what comes now comes of its execution."""

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        if response is not None and self._running is not None:
            self._running.served(response)
        if response is not None or self._decoded.empty_final:
            error = response.error if response is not None else None
            try:
                message = self._message(response, final)
            except Exception as fault:
                error = error_for_client(fault)
                message = self._failure(error, final)
            self._sent += len(message)
            if error is not None and self._running is not None:
                self._running.status = code_for(error).value[0]
            self._stream.put(message, error)
        if final:
            self._stream.finished(self.request)
            if self._running is not None:
                self._stream.log(self._running, self._sent)

    def _message(self, response: InferResponse | None, final: bool) -> bytes:
        if response is None:
            asked = self._decoded.asked
            response = InferResponse(asked.model_name, asked.model_version, id=asked.id)
        if response.error is not None:
            return self._failure(response.error, final)
        if response.receipt or _RECEIPT in response.parameters:  # no model names a receipt by itself
            others = {name: value for name, value in response.parameters.items() if name != _RECEIPT}
            response.parameters = {**others, _RECEIPT: response.receipt} if response.receipt else others
        return response_message(self._calls.parts(response, self._decoded), final)

    def _failure(self, error: RepoAgentError, final: bool) -> bytes:
        asked = self._decoded.asked
        known = self.accepted or self.request.times is not None
        return error_message(error, asked.id, asked.model_name if known else None, final)
