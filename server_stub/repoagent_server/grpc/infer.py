"""Inference over gRPC: one request and one response, or a stream of both."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterable
from concurrent.futures import Executor
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.limits import Limits
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent_server.codec.infer_request import OutputForm
from repoagent_server.codec.infer_response import is_long
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.details import details
from repoagent_server.grpc.request import Decoded, read_infer
from repoagent_server.grpc.response import STATUS, infer_message
from repoagent_server.grpc.response_writer import ResponseWriter
from repoagent_server.grpc.wire import LONG_MESSAGE, check_infer
from repoagent_server.handlers.inference import CallContext, Inference
from repoagent_server.handlers.server import check_version
from repoagent_server.shared.backlog import Backlog
from repoagent_server.shared.in_flight import InFlight
from repoagent_server.shared.mailbox import Answer, Mailbox
from repoagent_server.shared.told import told as said

__all__ = ["InferCalls", "receive"]

logger = logging.getLogger(__name__)
_FINAL: Final = "triton_final_response"
_ERRORS_ARE_STATUSES: Final = "triton_grpc_error"
_DECOUPLED: Final = "ModelInfer RPC doesn't support models with decoupled transaction policy"
_OVERRUN: Final = "the client reads the stream too slowly: too many responses wait for it"
_WAITING_LIMIT: Final = 256
"""Responses of one stream that may wait for a slow client before no more of its requests are read."""

_ALL_BINARY: Final = OutputForm(default_binary=True)
_T = TypeVar("_T")

Received: TypeAlias = pb.ModelInferRequest | bytes
Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types


class InferCalls:
    """The two calls that run models. Belongs to one event loop, as ``inference`` does."""

    def __init__(self, inference: Inference, in_flight: InFlight, long: Executor) -> None:
        """``long``: where large requests are read and large answers written, one after another."""
        self._inference = inference
        self._long = long
        self._backlog = Backlog()
        self._in_flight = in_flight
        self._writer = ResponseWriter()

    @property
    def limits(self) -> Limits:
        """How much one request may hold."""
        return self._inference.limits

    def parse(self, data: bytes) -> Received:
        """What arrives at :meth:`infer`: a message, or a large one as it came, which is parsed elsewhere."""
        return data if len(data) >= LONG_MESSAGE else pb.ModelInferRequest.FromString(data)

    async def infer(self, received: Received, context: Context) -> bytes:
        """ModelInfer. A client that goes away cancels its request."""
        self._in_flight.started()
        try:
            return await self._infer(received, context)
        except Exception as error:
            status, text = _status(error)
        finally:
            self._in_flight.finished()
        # Not inside of ``except``, and without a name for the error: grpc keeps what abort raises, and with it this
        # frame, and would keep the memory of the request that failed.
        await context.abort(status, details(text))
        raise AssertionError("abort raises")

    async def _infer(self, received: Received, context: Context) -> bytes:
        decoded = await self._decoded(received)
        request, answer = self._submit(decoded, context)
        response = answer.response
        if response is None:
            response = await _or_cancel(answer.wait(), request)
        if response.error is not None:
            raise response.error
        if is_long(response, _ALL_BINARY):
            return await _on(self._long, lambda: self._writer.write(response, decoded.wishes.spans))
        return self._writer.write(response, decoded.wishes.spans)

    async def _decoded(self, received: Received) -> Decoded:
        if isinstance(received, bytes):
            return await read_long(self._inference, received, self._long)
        return _read(self._inference, received)

    def _submit(self, decoded: Decoded, context: Context) -> "tuple[InferRequest, _OneAnswer]":
        inference = self._inference
        answer = _OneAnswer(inference.mailbox)
        call = inference.context(context.invocation_metadata)
        request = inference.prepare(decoded.asked, answer, call, decoded.wishes, _DECOUPLED)
        inference.submit(request)
        return request, answer

    async def stream(self, messages: AsyncIterator[pb.ModelInferRequest | bytes], context: Context) -> None:
        """ModelStreamInfer: any number of requests in flight, responses as they come."""
        try:
            call = self._inference.context(context.invocation_metadata)
        except RepoAgentError as error:
            await context.abort(STATUS[error.code], details(said(error)))
        stream = _Stream(
            self._inference,
            call,
            self._backlog,
            self._in_flight,
            self._long,
            errors_are_statuses=_wants_statuses(context.invocation_metadata() or ()),
        )
        reading = asyncio.ensure_future(stream.read(messages))
        writing = asyncio.ensure_future(_write(stream, context))
        try:
            await asyncio.wait((writing, stream.overrun), return_when=asyncio.FIRST_COMPLETED)
            if stream.overrun.done():
                stream.close()  # Now: how long the status takes is up to the client, who does not read.
                await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, _OVERRUN)
            writing.result()
            if stream.failure is not None:
                status, text = _status(stream.failure)
                await context.abort(status, details(text))
        finally:
            reading.cancel()
            writing.cancel()
            stream.close()


def _wants_statuses(metadata: Iterable[tuple[str, str | bytes]]) -> bool:
    """Whether the client wants an error to be the status of its stream, which then ends."""
    return any(name == _ERRORS_ARE_STATUSES and value in ("true", b"true") for name, value in metadata)


async def _write(stream: "_Stream", context: Context) -> None:
    while (message := await stream.next()) is not None:
        await context.write(message)


def receive(data: bytes) -> pb.ModelInferRequest | bytes:
    """What arrives on a stream: a message, or a large one as it is."""
    return data if len(data) >= LONG_MESSAGE else pb.ModelInferRequest.FromString(data)


async def read_long(inference: Inference, data: bytes, long: Executor) -> Decoded:
    """What a large message asks for, parsed on the thread of ``long`` where that takes long.

    Raises:
        RepoAgentError: there is something wrong with it.
    """
    if check_infer(data, inference.limits) >= LONG_MESSAGE:
        message = await _on(long, lambda: _parse(data))
    else:
        message = _parse(data)
    if any(entry.datatype == "BYTES" or entry.HasField("contents") for entry in message.inputs):
        return await _on(long, lambda: _read(inference, message))
    return _read(inference, message)


def _parse(data: bytes) -> pb.ModelInferRequest:
    try:
        return pb.ModelInferRequest.FromString(data)
    except DecodeError as error:
        raise InvalidArgumentError(f"the message is not valid: {error}") from None


async def _on(pool: Executor, work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


def _read(inference: Inference, message: pb.ModelInferRequest) -> Decoded:
    version = check_version(message.model_version)
    try:
        return read_infer(message, inference.regions, inference.limits)
    except RepoAgentError:
        inference.model_metadata(message.model_name, version)
        raise


async def _or_cancel(future: "asyncio.Future[InferResponse]", request: InferRequest) -> InferResponse:
    try:
        return await future
    except asyncio.CancelledError:
        request.cancel()
        raise


class _OneAnswer(Answer):
    """The answer to a request that must have exactly one response."""

    __slots__ = ("_first", "_future", "response")

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._first: InferResponse | None = None
        self._future: asyncio.Future[InferResponse] | None = None
        self.response: InferResponse | None = None
        """What there is to say, once that is certain; an error if there was not exactly one response."""

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        if self.response is not None:
            return
        first = self._first
        if first is None:
            first = self._first = response
        elif response is not None:
            self._settle(_several(first))
            return
        if final:
            self._settle(first or _several())

    def _settle(self, response: InferResponse) -> None:
        self.response = response
        if self._future is not None and not self._future.done():
            self._future.set_result(response)

    def wait(self) -> "asyncio.Future[InferResponse]":
        """For the response, which is not there yet."""
        self._future = asyncio.get_running_loop().create_future()
        return self._future


def _several(first: InferResponse | None = None) -> InferResponse:
    """In the place of none, or of several responses."""
    model, version = (first.model_name, first.model_version) if first is not None else ("", "")
    return InferResponse(model, version, error=UnsupportedError(_DECOUPLED))


class _Stream:
    """One stream: what was asked on it, and the responses that wait to be written."""

    def __init__(
        self,
        inference: Inference,
        call: CallContext,
        backlog: Backlog,
        in_flight: InFlight,
        long: Executor,
        *,
        errors_are_statuses: bool,
    ) -> None:
        self._long = long
        self._errors_are_statuses = errors_are_statuses
        self._inference = inference
        self._call = call
        self._backlog = backlog
        self._in_flight = in_flight
        self._bytes = 0
        self._running: dict[InferRequest, None] = {}
        self._waiting: asyncio.Queue[tuple[pb.ModelStreamInferResponse | None, int]] = asyncio.Queue()
        self.overrun: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when more waits for the client than may."""
        self._room = asyncio.Event()
        self._room.set()
        self._all_read = False
        self.failure: RepoAgentError | None = None
        """What ended the stream, where errors do."""

    async def read(self, messages: AsyncIterator[pb.ModelInferRequest | bytes]) -> None:
        """Submit what the client sends, as long as it also takes what it is sent."""
        async for message in messages:
            await self._room.wait()
            if isinstance(message, bytes):
                await self._submit_long(message)
            else:
                self._submit(message)
        self._all_read = True
        self._end_if_done()

    async def next(self) -> pb.ModelStreamInferResponse | None:
        """The next message to write, None at the end."""
        message, size = await self._waiting.get()
        self._count(-size)
        if self._waiting.qsize() < _WAITING_LIMIT:
            self._room.set()
        return message

    def close(self) -> None:
        """Give up what still runs and what waits."""
        for request in self._running:
            request.cancel()
        self._count(-self._bytes)
        self._waiting = asyncio.Queue()
        self.overrun.cancel()

    def _refuse(self, error: RepoAgentError, request_id: str) -> None:
        self.put(_error_message(error, request_id), error)

    def put(self, message: pb.ModelStreamInferResponse, error: RepoAgentError | None = None) -> None:
        """Send ``message``, or what it says as the status that ends the stream, if the client wants errors so."""
        if self.overrun.done() or self.failure is not None:
            return
        if error is not None and self._errors_are_statuses:
            self.failure = error
            self._waiting.put_nowait((None, 0))
            return
        size = message.ByteSize()
        if not self._backlog.allows(self._bytes):
            self.overrun.set_result(None)
            return
        self._count(size)
        self._waiting.put_nowait((message, size))
        if self._waiting.qsize() >= _WAITING_LIMIT:
            self._room.clear()

    def _count(self, size: int) -> None:
        self._backlog.change(self._bytes, self._bytes + size)
        self._bytes += size

    def finished(self, request: InferRequest) -> None:
        if self._running.pop(request, False) is None:  # the first time that this is said of it
            self._in_flight.finished()
        self._end_if_done()

    async def _submit_long(self, data: bytes) -> None:
        try:
            decoded = await read_long(self._inference, data, self._long)
        except Exception as error:
            self._refuse(_told(error), "")
            return
        self._start(decoded)

    def _submit(self, message: pb.ModelInferRequest) -> None:
        try:
            decoded = _read(self._inference, message)
        except Exception as error:
            self._refuse(_told(error), message.id)
            return
        self._start(decoded)

    def _start(self, decoded: Decoded) -> None:
        sender = _StreamSender(self, self._inference.mailbox, decoded)
        request = sender.request = self._inference.prepare(decoded.asked, sender, self._call, decoded.wishes)
        self._running[request] = None
        self._in_flight.started()
        try:
            self._inference.submit(request)
        except Exception as error:
            self._refuse(_told(error), request.asked.id)
            self.finished(request)
        sender.accepted = True

    def _end_if_done(self) -> None:
        if self._all_read and not self._running:
            self._waiting.put_nowait((None, 0))


class _StreamSender(Answer):
    """The sender of one request of a stream."""

    __slots__ = ("_decoded", "_stream", "accepted", "request")

    def __init__(self, stream: _Stream, mailbox: Mailbox, decoded: Decoded) -> None:
        super().__init__(mailbox)
        self._stream = stream
        self._decoded = decoded
        self.request: InferRequest
        """Set before it is submitted."""
        self.accepted = False
        """The core has the request: what comes now comes of its execution."""

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        if response is not None or self._decoded.empty_final:
            error = response.error if response is not None else None
            try:
                message = self._message(response, final)
            except Exception as fault:
                error = _told(fault)
                message = self._failure(error, final)
            self._stream.put(message, error)
        if final:
            self._stream.finished(self.request)

    def _message(self, response: InferResponse | None, final: bool) -> pb.ModelStreamInferResponse:
        if response is None:
            asked = self._decoded.asked
            response = InferResponse(asked.model_name, asked.model_version, id=asked.id)
        if response.error is not None:
            return self._failure(response.error, final)
        message = pb.ModelStreamInferResponse(infer_response=infer_message(response, self._decoded.wishes.spans))
        message.infer_response.parameters[_FINAL].bool_param = final
        return message

    def _failure(self, error: RepoAgentError, final: bool) -> pb.ModelStreamInferResponse:
        """As Triton's: only of a request that was let in is there more to say than its id."""
        message = _error_message(error, self._decoded.asked.id)
        if self.accepted or self.request.times is not None:
            message.infer_response.model_name = self._decoded.asked.model_name
            message.infer_response.parameters[_FINAL].bool_param = final
        return message


def _told(error: Exception) -> RepoAgentError:
    """What a client is told of ``error``: a fault of ours is logged, and must not leave it without an answer."""
    if isinstance(error, RepoAgentError):
        return error
    logger.error("an inference request over gRPC failed: %s", error, exc_info=error)
    return InternalError(f"unexpected {type(error).__name__}; the server's log has the details")


def _status(error: Exception) -> tuple[Any, str]:
    told = _told(error)
    return STATUS[told.code], said(told)


def _error_message(error: RepoAgentError, request_id: str) -> pb.ModelStreamInferResponse:
    message = pb.ModelStreamInferResponse(error_message=said(error))
    message.infer_response.id = request_id
    return message
