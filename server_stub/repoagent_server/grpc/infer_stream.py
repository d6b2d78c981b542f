"""ModelStreamInfer: any number of requests in flight on one stream, responses as they come."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from concurrent.futures import Executor
from typing import Any, Final, TypeAlias

import grpc

from repoagent.errors import RepoAgentError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.access import caller_of
from repoagent_server.grpc.details import details
from repoagent_server.grpc.infer import Received, read, read_long, status_of, told_of
from repoagent_server.grpc.request import Decoded
from repoagent_server.grpc.response import code_for, infer_message
from repoagent_server.handlers.inference import CallContext, Inference
from repoagent_server.shared.backlog import Backlog
from repoagent_server.shared.in_flight import InFlight
from repoagent_server.shared.mailbox import Answer, Mailbox
from repoagent_server.shared.told import told

__all__ = ["InferStreams"]

_FINAL: Final = "triton_final_response"
_ERRORS_ARE_STATUSES: Final = "triton_grpc_error"
_OVERRUN: Final = "the client reads the stream too slowly: too many responses wait for it"
_WAITING_LIMIT: Final = 256
"""Responses of one stream that may wait for a slow client before no more of its requests are read."""

Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types


class InferStreams:
    """Belongs to one event loop, as ``inference`` does."""

    def __init__(self, inference: Inference, in_flight: InFlight, long: Executor) -> None:
        """``long``: where large requests are read, one after another."""
        self._inference = inference
        self._in_flight = in_flight
        self._long = long
        self._backlog = Backlog()

    async def stream(self, messages: AsyncIterator[Received], context: Context) -> None:
        """ModelStreamInfer: any number of requests in flight, responses as they come."""
        try:
            call = self._inference.context(context.invocation_metadata, caller_of(context))
        except RepoAgentError as error:
            await context.abort(code_for(error), details(told(error)))
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
                status, text = status_of(stream.failure)
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

    async def read(self, messages: AsyncIterator[Received]) -> None:
        """Submit what the client sends, as long as it also takes what it is sent."""
        async for message in messages:
            await self._room.wait()
            if isinstance(message, (bytes, bytearray)):
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

    async def _submit_long(self, data: bytes | bytearray) -> None:
        try:
            decoded = await read_long(self._inference, data, self._long, self._call.client)
        except Exception as error:
            self._refuse(told_of(error), "")
            return
        self._start(decoded)

    def _submit(self, message: pb.ModelInferRequest) -> None:
        try:
            decoded = read(self._inference, message, self._call.client)
        except Exception as error:
            self._refuse(told_of(error), message.id)
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
            self._refuse(told_of(error), request.asked.id)
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
                error = told_of(fault)
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


def _error_message(error: RepoAgentError, request_id: str) -> pb.ModelStreamInferResponse:
    message = pb.ModelStreamInferResponse(error_message=told(error))
    message.infer_response.id = request_id
    return message
