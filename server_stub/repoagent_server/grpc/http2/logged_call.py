"""A quick call while a request log is written."""

from typing import TYPE_CHECKING

from repoagent.serving.requests.request import InferResponse
from repoagent_server.grpc.http2.connection import Connection
from repoagent_server.grpc.http2.quick_call import QuickCall
from repoagent_server.grpc.http2.stream import Stream
from repoagent_server.handlers.running_request import RunningRequest

if TYPE_CHECKING:
    from repoagent_server.grpc.http2.dispatcher import Dispatcher

__all__ = ["LoggedQuickCall"]


class LoggedQuickCall(QuickCall):
    """Writes its line when it has been answered, or its client has gone."""

    __slots__ = ("_running",)

    def __init__(self, dispatcher: "Dispatcher", connection: Connection, stream: Stream) -> None:
        super().__init__(dispatcher, connection, stream)
        self._running: RunningRequest | None = None

    def start(self, message: bytes) -> None:
        head = self._stream.head
        caller = self._dispatcher.calls.now(head.caller)
        self._running = RunningRequest(len(message), caller, head.request_id)
        super().start(message)

    def settled(self, response: InferResponse) -> None:
        if self._running is not None:
            self._running.served(response)
        super().settled(response)

    def _done(self, status: int, size: int = 0) -> None:
        running, log = self._running, self._dispatcher.calls.log
        if running is not None and log is not None:
            self._running = None
            if self._decoded is not None and not running.model:
                running.asks(self._decoded.asked)
            elif self._decoded is not None:
                running.request = running.request or self._decoded.asked.id
            running.status = status
            running.end(log, size)
        super()._done(status, size)
