"""ModelInfer: one request and one response, and what it shares with the stream of them."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, Final, TypeAlias, TypeVar

from google.protobuf.message import DecodeError

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent_server.access import Caller
from repoagent_server.codec.binary import Buffer
from repoagent_server.codec.infer_request import OutputEncoding
from repoagent_server.codec.infer_response import is_long
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.known_requests import KnownRequests
from repoagent_server.grpc.request import Decoded, read_infer
from repoagent_server.grpc.response import ResponseWriter, status_of
from repoagent_server.grpc.wire import LONG_MESSAGE, check_infer, is_plain, split_raw
from repoagent_server.handlers.inference import Answer, Headers, Inference, Mailbox, check_version
from repoagent_server.shared.connections import InFlight
from repoagent_server.shared.request_log import RequestLog, RunningRequest

_DECOUPLED: Final = "ModelInfer RPC doesn't support models with decoupled transaction policy"

_LARGE: Final = 1 << 16
"""Bytes of a tensor that are not copied into a message, or that take long to write one by one."""
_CANCELLED: Final = 1
_ALL_BINARY: Final = OutputEncoding(default_binary=True)
_T = TypeVar("_T")

Received: TypeAlias = pb.ModelInferRequest | bytes | bytearray
"""A message, or a large one as it came, which is parsed elsewhere."""
Context: TypeAlias = Any  # grpc.aio.ServicerContext: grpc has no types


def receive(data: bytes | bytearray) -> Received:
    """What a call is given of the bytes of its request."""
    return data if len(data) >= LONG_MESSAGE else pb.ModelInferRequest.FromString(bytes(data))


class InferCalls:
    """The call that runs models. Belongs to one event loop, as ``inference`` does."""

    def __init__(
        self, inference: Inference, in_flight: InFlight, long: Executor, log: RequestLog | None = None
    ) -> None:
        """``long``: where large requests are read and large answers written, one after another."""
        self.inference = inference
        self.log = log
        self.long = long
        self.in_flight = in_flight
        self._writer = ResponseWriter()
        self._known = KnownRequests()

    async def infer(self, received: Received, context: Context) -> list[Buffer]:
        """ModelInfer: the parts of the answer's message. A client that goes away cancels its request."""
        self.in_flight.started()
        running = None if self.log is None else self._running(received, context)
        try:
            answer = await self._infer(received, context, running)
            if not isinstance(answer, RepoAgentError):
                self._log(running, 0, sum(map(len, answer)))
                return answer
            status, text = status_of(answer)
        except Exception as error:
            status, text = status_of(error)
        except BaseException:
            self._log(running, _CANCELLED)
            raise
        finally:
            self.in_flight.finished()
        self._log(running, status.value[0])
        # Not inside of ``except``, and without names for the error and the message: grpc keeps what abort raises, and
        # with it this frame, and would keep the memory of the request that failed.
        del received
        await context.abort(status, text)
        raise AssertionError("abort raises")

    def _running(self, received: Received, context: Context) -> RunningRequest:
        size = received.ByteSize() if isinstance(received, pb.ModelInferRequest) else len(received)
        running = RunningRequest(size, self.inference.name_now(context.caller), context.request_id)
        running.model = getattr(received, "model_name", "")
        return running

    def _log(self, running: RunningRequest | None, status: int, sent: int = 0) -> None:
        if running is not None and self.log is not None:
            running.status = status
            running.end(self.log, sent)

    async def _infer(
        self, received: Received, context: Context, running: RunningRequest | None
    ) -> list[Buffer] | RepoAgentError:
        """An error of the response is given back, not raised: with this frame it would be a cycle, which holds the
        request's memory until the garbage collector comes."""
        caller = context.caller
        if isinstance(received, pb.ModelInferRequest):
            decoded = read(self.inference, received, caller)
        else:
            decoded = await read_long(self.inference, received, self.long, caller)
        del received  # the memory of a large message: its tensors hold what they need of it
        if running is not None:
            running.asks(decoded.asked)
        answer = _Awaited(self.inference.mailbox)
        request = self.submit(decoded, context.invocation_metadata, answer, caller, context.request_id)
        response = answer.response or await _or_cancel(answer.wait(), request)
        if running is not None:
            running.served(response)
        if response.error is not None:
            return response.error
        if response.receipt:
            context.name_receipt(response.receipt)
        return await self.written(response, decoded)

    def read(self, message: bytes, caller: Caller | None = None) -> Decoded:
        """What a small message of ``caller`` asks for.

        Raises:
            RepoAgentError: there is something wrong with it.
        """
        decoded = self._known.read(message)
        if decoded is None:
            parsed = _parse(message)
            decoded = read(self.inference, parsed, caller)
            self._known.remember(message, parsed, decoded)
        return decoded

    def submit(
        self,
        decoded: Decoded,
        headers: Callable[[], Headers],
        answer: "OneAnswer",
        caller: Caller | None = None,
        call_id: str = "",
    ) -> InferRequest:
        """Hand a request of ``caller`` over, with what the ``headers`` of its call mean. ``answer`` gets the answer.
        ``call_id`` is its ``x-request-id``.

        Raises:
            RepoAgentError: a header cannot be forwarded, or the caller may not infer with the model.
        """
        inference = self.inference
        call = inference.context(headers, caller, call_id)
        request = inference.prepare(decoded.asked, answer, call, decoded.requested, _DECOUPLED)
        inference.core.submit(request)
        return request

    @staticmethod
    def is_large(response: InferResponse) -> bool:
        """Whether a good response is one for :meth:`written`."""
        for tensor in response.outputs.values():  # noqa: SIM110 - a generator is two calls more in each answer
            if tensor.array.nbytes >= _LARGE:
                return True
        return False

    def write(self, response: InferResponse, decoded: Decoded) -> bytes:
        """A good response that is not large, as its message."""
        return self._writer.write(response, decoded.requested.spans)

    def parts(self, response: InferResponse, decoded: Decoded) -> list[Buffer]:
        """A good response as the parts of its message."""
        return self._writer.parts(response, decoded.requested.spans)

    async def written(self, response: InferResponse, decoded: Decoded) -> list[Buffer]:
        """The parts of the message of any good response. Those of large tensors are their own memory."""
        if is_long(response, _ALL_BINARY):
            return await _on(self.long, lambda: [self._writer.write(response, decoded.requested.spans)])
        return self._writer.parts(response, decoded.requested.spans)


async def read_long(inference: Inference, data: Buffer, long: Executor, caller: Caller | None = None) -> Decoded:
    """What a large message asks for, parsed on the thread of ``long`` where that takes long.

    Raw tensors stay where they are: only the rest of the message goes through the parser.

    Raises:
        RepoAgentError: there is something wrong with it.
    """

    def parsed() -> tuple[pb.ModelInferRequest, list[memoryview] | None]:
        check_infer(data, inference.limits)
        rest, raw = split_raw(data)
        return _parse(rest), raw

    def read_held() -> Decoded:
        decoded = read(inference, message, caller, raw)
        inference.hold(decoded.asked)
        return decoded

    plain = is_plain(data)
    message, raw = parsed() if plain else await _on(long, parsed)
    if not plain or any(entry.datatype == "BYTES" or entry.HasField("contents") for entry in message.inputs):
        return await _on(long, read_held)
    return read(inference, message, caller, raw)


def read(
    inference: Inference,
    message: pb.ModelInferRequest,
    caller: Caller | None = None,
    raw: list[memoryview] | None = None,
) -> Decoded:
    """What a message of ``caller`` asks for; ``raw``: its raw tensors, where they are not in it.

    Raises:
        RepoAgentError: there is something wrong with it, or the caller may not infer with the model, which is reported
            before anything else about the model.
    """
    inference.admit(caller, message.model_name)
    version = check_version(message.model_version)
    try:
        return read_infer(message, inference.regions(caller), inference.limits, raw)
    except RepoAgentError as error:
        inference.unreadable(error, caller, message.model_name, version)
        raise


def _parse(data: Buffer) -> pb.ModelInferRequest:
    try:
        return pb.ModelInferRequest.FromString(data)  # type: ignore[arg-type]  # it takes any buffer
    except DecodeError as error:
        raise InvalidArgumentError(f"the message is not valid: {error}") from None


async def _on(pool: Executor, work: Callable[[], _T]) -> _T:
    return await asyncio.get_running_loop().run_in_executor(pool, work)


async def _or_cancel(future: "asyncio.Future[InferResponse]", request: InferRequest) -> InferResponse:
    try:
        return await future
    except asyncio.CancelledError:
        request.cancel()
        raise


class OneAnswer(Answer):
    """The answer to a request that must have exactly one response."""

    __slots__ = ("_first", "_is_settled")

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._first: InferResponse | None = None
        self._is_settled = False

    def settled(self, response: InferResponse) -> None:
        """Take the answer once it is certain; an error if there was not exactly one response."""
        raise NotImplementedError

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        if self._is_settled:
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
        self._is_settled = True
        self._first = None
        self.settled(response)


class _Awaited(OneAnswer):
    """One that a coroutine waits for."""

    __slots__ = ("_future", "response")

    def __init__(self, mailbox: Mailbox) -> None:
        super().__init__(mailbox)
        self._future: asyncio.Future[InferResponse] | None = None
        self.response: InferResponse | None = None

    def settled(self, response: InferResponse) -> None:
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
