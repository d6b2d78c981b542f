"""gRPC in an ingress: the methods of the server, of which those of inference pass their messages on to replicas."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final

import grpc
from google.protobuf.message import DecodeError
from repoagent_server.access import Access, AccessError
from repoagent_server.access.credentials import Given, given_in
from repoagent_server.grpc.access import CallAccess
from repoagent_server.grpc.response import code_for, details, error_for_client, error_message
from repoagent_server.grpc.service import METHODS, SERVICE, GrpcService
from repoagent_server.handlers.inference import Inference, Mailbox, Served
from repoagent_server.shared.client_text import client_text
from repoagent_server.shared.pools import Pools
from repoagent_server.shared.request_log import RequestLog, RunningRequest, log_refused

from repoagent.errors import RepoAgentError
from repoagent.limits import Limits
from repoagent_ray.cluster_core import ClusterCore, ClusterOperations
from repoagent_ray.grpc_calls import CallContext, CallEnded, Named, answer_once
from repoagent_ray.logs import NO_LINE, LoggedLine, RequestLine, head_of
from repoagent_ray.replicas import Replicas
from repoagent_ray.wire import Failure, GrpcAnswer, GrpcCall, GrpcEnd, without_credentials

_INFER: Final = "ModelInfer"
_STREAM: Final = "ModelStreamInfer"
_ERRORS_ARE_STATUSES: Final = "triton_grpc_error"
_INVALID: Final = "the message is not valid"
_GONE: Final = GrpcEnd(grpc.StatusCode.CANCELLED.value[0], "the client has gone")


class IngressGrpc:
    """Answers calls on the event loop on which it is called."""

    def __init__(
        self,
        core: ClusterCore,
        replicas: Replicas,
        pools: Pools,
        *,
        access: Access | None = None,
        limits: Limits,
        stream_requests: int,
        log: RequestLog | None = None,
    ) -> None:
        """``access``: who may do what; None lets everybody. ``stream_requests``: how many of a stream run at a time.
        ``log``: gets a line for each request."""
        self._core = core
        self._replicas = replicas
        self._pools = pools
        self._access = access
        self._limits = limits
        self._stream_requests = stream_requests
        self._log = log
        self._handlers: dict[str, Any] = {}
        self._inference: Inference | None = None
        self._guard: CallAccess | None = None

    async def once(self, name: str, message: bytes, context: CallContext) -> bytes:
        """The answer to a call of the method ``name``, which has one.

        Raises:
            CallEnded: the status that ends the call.
        """
        handler = self._handler(name)
        self._begin(name, context)
        return await answer_once(handler, message, context)

    async def stream(self, messages: AsyncIterator[bytes], context: CallContext) -> AsyncIterator[bytes]:
        """The answers to a call of ModelStreamInfer.

        Raises:
            CallEnded: the status that ends the call.
        """
        handler = self._handler(_STREAM)
        self._begin(_STREAM, context)
        async for answer in handler.stream_stream(messages, context):
            yield answer

    def _begin(self, name: str, context: CallContext) -> None:
        """Find out who calls, before anything of the message counts.

        Raises:
            CallEnded: it is no client.
        """
        if self._guard is None:
            return
        method, place, request = f"/{SERVICE}/{name}", context.address, context.request_id
        try:
            context.caller = self._guard.begin(method, lambda: _shown_by(context), address=place, request=request)
        except AccessError as error:
            ended = _status(error)
            log_refused(self._log, method, ended.code, request, error.client)
            raise CallEnded(ended) from error

    def _handler(self, name: str) -> Any:
        """What answers a method."""
        if not self._handlers:
            self._assemble()
        handler = self._handlers.get(name)
        assert handler is not None, f"Ray's proxy has no other methods than these: {name}"
        return handler

    def _assemble(self) -> None:
        loop = asyncio.get_running_loop()
        operations = ClusterOperations(self._core)
        served = Served(self._core, limits=self._limits, access=self._access)
        service = GrpcService(served, loop, self._pools, operations=operations)
        self._inference = Inference(served, Mailbox(loop), protocol="grpc", route=f"/{SERVICE}/{_INFER}")
        plain = {name: service.service(Named(f"/{SERVICE}/{name}")) for name in METHODS}
        plain[_INFER] = grpc.unary_unary_rpc_method_handler(self._infer)
        plain[_STREAM] = grpc.stream_stream_rpc_method_handler(self._infer_stream)
        self._guard = service.access
        self._handlers = plain

    # -- inference ------------------------------------------------------------------------------------------------

    async def _infer(self, message: bytes, context: Any) -> bytes:
        line = self._line(message, context)
        answer: bytes | GrpcEnd = _GONE
        try:
            answer = await self._answer_once(message, context, line)
        finally:
            line.ends(answer)
        if isinstance(answer, GrpcEnd):
            raise CallEnded(answer)
        return answer

    async def _answer_once(self, message: bytes, context: Any, line: RequestLine) -> bytes | GrpcEnd:
        try:
            head = head_of(message, self._limits)
            line.asks(head)
            self._admit(context, head.model)
            answer = await self._replicas.once("grpc", head.model, self._call(message, context))
        except DecodeError:
            return GrpcEnd(grpc.StatusCode.INTERNAL.value[0], "Exception deserializing request!")
        except RepoAgentError as error:
            return _status(error)
        if isinstance(answer, GrpcAnswer):
            context.name_receipt(answer.receipt)
            return answer.message
        end: bytes | GrpcEnd = answer
        return end

    async def _infer_stream(self, messages: AsyncIterator[bytes], context: Any) -> AsyncIterator[bytes]:
        answers: asyncio.Queue[bytes | GrpcEnd | None] = asyncio.Queue(1)
        running = asyncio.ensure_future(self._answer_all(messages, context, answers))
        try:
            while (answer := await answers.get()) is not None:
                if isinstance(answer, GrpcEnd):
                    raise CallEnded(answer)
                yield answer
        finally:
            running.cancel()

    async def _answer_all(
        self, messages: AsyncIterator[bytes], context: Any, answers: "asyncio.Queue[bytes | GrpcEnd | None]"
    ) -> None:
        """Answer every message, many at a time; at the end None, or the status of what kept the rest from being read:
        without either the call would wait forever."""
        end: GrpcEnd | None = None
        room = asyncio.Semaphore(self._stream_requests)
        try:
            async with asyncio.TaskGroup() as group:
                async for message in messages:
                    await room.acquire()
                    task = group.create_task(self._answer(message, context, answers))
                    task.add_done_callback(lambda _: room.release())
        except (ExceptionGroup, asyncio.CancelledError) as fault:
            if _is_being_cancelled():
                raise  # nothing takes answers any more
            end = _status(error_for_client(fault.exceptions[0])) if isinstance(fault, ExceptionGroup) else _GONE
        await answers.put(end)

    async def _answer(self, message: bytes, context: Any, answers: "asyncio.Queue[bytes | GrpcEnd | None]") -> None:
        """Answer one message of a stream."""
        statuses, name, line = _wants_statuses(context), "", self._line(message, context)

        async def put(answer: bytes | GrpcEnd, error: RepoAgentError | None = None) -> None:
            line.answers(answer, error)
            await answers.put(answer)

        try:
            head = head_of(message, self._limits)
            name = head.id
            line.asks(head)
            self._admit(context, head.model)
            async for piece in self._replicas.stream("grpc_stream", head.model, self._call(message, context)):
                if isinstance(piece, Failure):
                    await put(_refusal(piece.error(), name, statuses), piece.error())
                else:
                    await put(piece)
        except DecodeError:
            await put(GrpcEnd(grpc.StatusCode.INTERNAL.value[0], _INVALID))
        except Exception as error:
            await put(_refusal(error_for_client(error), name, statuses), error_for_client(error))
        finally:
            line.ends()

    def _line(self, message: bytes, context: Any) -> RequestLine:
        """What the request log gets of a message."""
        if self._log is None:
            return NO_LINE
        assert self._inference is not None
        client = self._inference.name_now(context.caller)
        return LoggedLine(self._log, RunningRequest(len(message), client, context.request_id))

    def _admit(self, context: Any, model: str) -> None:
        """Check that the client may infer with the model.

        Raises:
            AccessError: it may not.
        """
        assert self._inference is not None
        self._inference.admit(context.caller, model)

    def _call(self, message: bytes, context: Any) -> GrpcCall:
        metadata = list(context.invocation_metadata())
        return GrpcCall(message, metadata if self._access is None else without_credentials(metadata))


def _shown_by(context: CallContext) -> Given:
    """What a call shows of its client. Ray's proxy terminates TLS, and passes no certificates on."""
    return given_in(
        (name.encode(), value if isinstance(value, bytes) else value.encode(errors="surrogateescape"))
        for name, value in context.invocation_metadata()
    )


def _status(error: RepoAgentError) -> GrpcEnd:
    return GrpcEnd(code_for(error).value[0], details(client_text(error)))


def _refusal(error: RepoAgentError, request_id: str, statuses: bool) -> bytes | GrpcEnd:
    """The answer to a message of a stream that was not let in: a status, which ends the stream, if the client wants."""
    return _status(error) if statuses else error_message(error, request_id)


def _is_being_cancelled() -> bool:
    """Whether the task that runs is to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _wants_statuses(context: Any) -> bool:
    return any(
        name == _ERRORS_ARE_STATUSES and value in ("true", b"true") for name, value in context.invocation_metadata()
    )
