"""ModelInfer and ModelStreamInfer as they are while a request log is written: a line for each request."""

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

from repoagent.errors import RepoAgentError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent_server.access import Caller
from repoagent_server.codec.binary import Buffer
from repoagent_server.grpc.infer import Context, InferCalls, OneAnswer, Received, status_of
from repoagent_server.grpc.infer_stream import InferStream, InferStreams, StreamSender
from repoagent_server.grpc.request import Decoded
from repoagent_server.handlers.inference import CallContext, Headers
from repoagent_server.handlers.running_request import RunningRequest
from repoagent_server.shared.mailbox import Mailbox
from repoagent_server.shared.request_log import RequestLog

_CANCELLED: Final = 1
_running: Final[ContextVar[RunningRequest | None]] = ContextVar("repoagent_running_request", default=None)
"""The request of the call whose task this is."""


class LoggedInferCalls(InferCalls):
    """The calls that a coroutine answers. Those without one are :class:`LoggedQuickCall`'s."""

    async def infer(self, received: Received, context: Context) -> list[Buffer]:
        assert self.log is not None
        size = len(received) if isinstance(received, (bytes, bytearray)) else received.ByteSize()
        running = RunningRequest(size, self.now(context.caller), context.request_id)
        running.model = getattr(received, "model_name", "")
        running.status = _CANCELLED  # unless it comes to another end
        sent = 0
        _running.set(running)
        try:
            parts = await super().infer(received, _Watched(context, running))
            running.status, sent = 0, sum(map(len, parts))
        finally:
            running.end(self.log, sent)
        return parts

    def submit(
        self,
        decoded: Decoded,
        headers: Callable[[], Headers],
        answer: OneAnswer,
        caller: Caller | None = None,
        call_id: str = "",
    ) -> InferRequest:
        running = _running.get()
        if running is not None:
            running.asks(decoded.asked)
            answer = _Noted(self.mailbox, answer, running)
        return super().submit(decoded, headers, answer, caller, call_id)


class _Noted(OneAnswer):
    """Notes what comes before the answer gets it."""

    __slots__ = ("_inner", "_running")

    def __init__(self, mailbox: Mailbox, inner: OneAnswer, running: RunningRequest) -> None:
        super().__init__(mailbox)
        self._inner = inner
        self._running = running

    def settled(self, response: InferResponse) -> None:
        self._running.served(response)
        self._inner.settled(response)


class _Watched:
    """A context that notes the status with which its call ends."""

    def __init__(self, context: Context, running: RunningRequest) -> None:
        self._context = context
        self._running = running

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    async def abort(self, code: Any, text: str = "") -> None:
        self._running.status = code.value[0]
        await self._context.abort(code, text)


class LoggedInferStreams(InferStreams):
    """Streams with a line for each of their requests, when it has had its last response."""

    def new_stream(
        self, call: CallContext, write_now: Callable[[bytes], bool], context: Context, *, errors_are_statuses: bool
    ) -> InferStream:
        return _LoggedStream(self, call, write_now, context, errors_are_statuses=errors_are_statuses)


class _LoggedStream(InferStream):
    def __init__(
        self,
        streams: InferStreams,
        call: CallContext,
        write_now: Callable[[bytes], bool],
        context: Context,
        *,
        errors_are_statuses: bool,
    ) -> None:
        super().__init__(streams, call, write_now, errors_are_statuses=errors_are_statuses)
        assert streams.calls.log is not None
        self.log: RequestLog = streams.calls.log
        self._id = context.request_id
        self._small: RunningRequest | None = None
        """Of the message that is being submitted now, if it is small; those may overtake a large one."""
        self._large: RunningRequest | None = None

    def _submit(self, message: bytes) -> None:
        self._small = self._running_request(message)
        try:
            super()._submit(message)
        finally:
            self._small = None

    async def _submit_long(self, data: Buffer) -> None:
        self._large = self._running_request(data)
        await super()._submit_long(data)

    def _running_request(self, message: Buffer) -> RunningRequest:
        return RunningRequest(len(message), self._streams.inference.now(self._call.client), self._id)

    def _refuse(self, error: RepoAgentError, request_id: str) -> None:
        super()._refuse(error, request_id)  # the id in the request's own message
        running = self._small or self._large
        if running is not None:
            running.status = status_of(error)[0].value[0]
            running.request = running.request or request_id
            running.end(self.log, 0)

    def _sender(self, decoded: Decoded) -> StreamSender:
        running = self._small or self._large
        assert running is not None
        running.asks(decoded.asked)
        return _LoggedSender(self, self._streams.calls, decoded, running)


class _LoggedSender(StreamSender):
    __slots__ = ("_log", "_running", "_sent")

    def __init__(self, stream: _LoggedStream, calls: InferCalls, decoded: Decoded, running: RunningRequest) -> None:
        super().__init__(stream, calls, decoded)
        self._log = stream.log
        self._running = running
        self._sent = 0

    def deliver(self, response: InferResponse | None, final: bool) -> None:
        if response is not None:
            self._running.served(response)
        super().deliver(response, final)
        if final:
            self._running.end(self._log, self._sent)

    def _put(self, message: bytes, error: RepoAgentError | None) -> None:
        self._sent += len(message)
        if error is not None:
            self._running.status = status_of(error)[0].value[0]
        super()._put(message, error)
