"""From requests to calls: which method, whether it may be called, and in which way it is answered."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Final

from repoagent.errors import UnavailableError
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent_server.access import AccessError
from repoagent_server.access.credentials import given_in
from repoagent_server.grpc.access import CallAccess, RestrictedProtocols
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.frames import U32
from repoagent_server.grpc.http2.head import RequestHead, Stream, literal
from repoagent_server.grpc.http2.messages import CODINGS, INTERNAL, PREFIX_BYTES, UNIMPLEMENTED, MessageFault, too_large
from repoagent_server.grpc.http2.running_call import DEADLINE, RunningCall
from repoagent_server.grpc.infer import OneAnswer
from repoagent_server.grpc.request import Decoded
from repoagent_server.grpc.response import status_of
from repoagent_server.grpc.service import SERVICE, GrpcService
from repoagent_server.grpc.wire import LONG_MESSAGE
from repoagent_server.shared.request_id import RECEIPT
from repoagent_server.shared.request_log import RunningRequest, log_refused
from repoagent_server.shared.reserve import Reserve

_INFER: Final = f"/{SERVICE}/ModelInfer"
_CANCELLED: Final = 1
_UNAVAILABLE: Final = 14
_ACCEPTED: Final = literal(b"grpc-accept-encoding", b",".join(CODINGS))
_NOT_ALLOWED: Final = b"405"
_UNSUPPORTED_TYPE: Final = b"415"


@dataclass(frozen=True, slots=True)
class Route:
    """What calls with the same headers are."""

    name: str = ""
    handler: Any = None
    is_quick: bool = False
    """It is answered without a task, if its message is small."""
    status: tuple[int, str] | None = None
    """How it is refused."""
    is_restricted: bool = False
    """It is refused because it lacks the header of a restricted part."""
    http_status: bytes = b""
    """How it is refused, if it is not a call at all."""


class Dispatcher:
    """Belongs to one event loop. An :class:`~repoagent_server.grpc.http2.connection.Application`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        service: GrpcService,
        others: Sequence[Any],
        *,
        guards: RestrictedProtocols | None = None,
        max_message: int = -1,
        compression: int = 0,
        reserve: Reserve,
    ) -> None:
        """``others``: handlers of further services. ``compression``: the level of answers, 0 to 3."""
        self.loop = loop
        self.calls = service.calls
        self.max_message = max_message
        self.small = LONG_MESSAGE if max_message < 0 else min(LONG_MESSAGE, max_message + 1)
        """Bytes from which on a message is none for a quick call."""
        self.compression = compression
        self.reserve = reserve
        self.tasks: set[asyncio.Task[None]] = set()
        self._service = service
        self._guards = guards
        self._access = service.access
        self._handlers = _found_by((service, *others))

    # What connections call.

    def route(self, head: RequestHead) -> None:
        route = head.route = self._route(head)
        head.lazy = route.is_quick and head.timeout is None and self._access is None

    def opened(self, connection: Connection, stream: Stream) -> None:
        route: Route = stream.head.route
        timeout = stream.head.timeout
        if route.http_status:
            connection.sender.refuse(stream, route.http_status)
        elif route.status is not None:
            status, text = route.status
            if route.is_restricted and self._guards is not None:
                self._guards.refused(route.name, text, connection.address, stream.head.request_id)
            connection.sender.finish(stream, status, text, _ACCEPTED if stream.head.encoding not in CODINGS else b"")
        elif self._access is not None and self._is_denied(connection, stream, self._access):
            pass
        elif route.is_quick:
            call = QuickCall(self, connection, stream)
            if timeout is not None:
                call.expect(timeout)
            else:
                stream.head.lazy = True  # its client is known by now: the next call is judged with its message
            stream.call = call
        else:
            deadline = None if timeout is None else self.loop.time() + timeout
            stream.call = RunningCall(self, connection, stream, deadline)

    def data(self, connection: Connection, stream: Stream, data: bytes, start: int, stop: int, ended: bool) -> None:
        call = stream.call
        if call is None:
            if stream.begun:
                return  # it has been answered
            if self._access is not None and self._is_denied(connection, stream, self._access):
                return
            message = _only_message(data, start, stop, ended, self.small)
            if message is not None:
                quick = stream.call = QuickCall(self, connection, stream)
                quick.start(message)
                return
            call = stream.call = RunningCall(self, connection, stream)
        call.data(data, start, stop, ended)

    # What calls use.

    def check_running(self) -> None:
        """Refuse calls that come once the server is stopping.

        Raises:
            UnavailableError: it is.
        """
        if self._service.stopping:
            raise UnavailableError("Server not ready: it is stopping")

    def check_size(self, size: int) -> None:
        """Refuse an answer that is too large.

        Raises:
            MessageFault: it is.
        """
        if 0 <= self.max_message < size:
            raise too_large("Sent message", size, self.max_message)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine in the background."""
        task = self.loop.create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    def _is_denied(self, connection: Connection, stream: Stream, access: CallAccess) -> bool:
        """Whether a call ends here because of who calls, which is noted in its head. Not in its route: the next call
        with the same headers may come after a change of the rules."""
        head = stream.head
        try:
            head.caller = access.begin(
                head.route.name,
                lambda: given_in(head.fields, connection.peer),
                head.caller,
                address=connection.address,
                request=head.request_id,
            )
        except AccessError as error:
            head.lazy = False  # the next call must not wait for a message
            connection.sender.finish(stream, error.grpc_status, status_of(error)[1])
            log_refused(self.calls.log, head.route.name, error.grpc_status, head.request_id, error.client)
            return True
        return False

    def _route(self, head: RequestHead) -> Route:
        if head.method != b"POST":
            return Route(http_status=_NOT_ALLOWED)
        if not head.is_grpc:
            return Route(http_status=_UNSUPPORTED_TYPE)
        name = head.path.decode("latin-1")
        handler = self._handlers(name)
        if handler is None:
            return Route(status=(UNIMPLEMENTED, "Method not found!"))
        refusal = self._guards.refusal(name, head.metadata()) if self._guards is not None else None
        if refusal is not None:
            return Route(name, status=(_UNAVAILABLE, refusal), is_restricted=True)
        if head.encoding not in CODINGS:
            return Route(status=(UNIMPLEMENTED, f"grpc-encoding is none of {b', '.join(CODINGS).decode()}"))
        if head.timeout_is_bad:
            return Route(status=(INTERNAL, "grpc-timeout is not valid"))
        quick = name == _INFER and not self.compression and head.encoding == b"identity" and head.length is None
        return Route(name, handler, quick)


def _found_by(handlers: Sequence[Any]) -> Callable[[str], Any]:
    """The handler of a method by its path, as grpc's generic handlers give it."""

    def find(name: str) -> Any:
        asked = SimpleNamespace(method=name, invocation_metadata=())
        return next((found for one in handlers if (found := one.service(asked)) is not None), None)

    return find


class QuickCall(OneAnswer):
    """ModelInfer as nearly all calls are: one small message, one small answer, and no task.

    What it holds leads back to it, so it lets go of it at its end.
    """

    __slots__ = (
        "_connection", "_deadline", "_decoded", "_dispatcher", "_request", "_running", "_started", "_stream",
        "_timer",
    )  # fmt: skip

    def __init__(self, dispatcher: Dispatcher, connection: Connection, stream: Stream) -> None:
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
        message = _only_message(data, start, stop, ended, self._dispatcher.small)
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
            code, text = status_of(error)
            status = code.value[0]
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


def _only_message(data: bytes, start: int, stop: int, ended: bool, below: int) -> bytes | None:
    """The message, if ``data[start:stop]`` is all of the request: one of less than ``below`` bytes, uncompressed."""
    size = stop - start - PREFIX_BYTES
    if ended and 0 <= size < below and not data[start] and U32.unpack_from(data, start + 1)[0] == size:
        return data[start + PREFIX_BYTES : stop]
    return None
