"""The line of a request over gRPC in the request log of an ingress, which sees messages and no tensors."""

from typing import Final

from repoagent_server.grpc.response import code_for
from repoagent_server.handlers.running_request import RunningRequest
from repoagent_server.shared.request_log import RequestLog

from repoagent.errors import RepoAgentError
from repoagent_ray.message_head import MessageHead
from repoagent_ray.wire import GrpcEnd

__all__ = ["NO_LINE", "LoggedLine", "RequestLine"]


class RequestLine:
    """Without a log: nothing is written."""

    def asks(self, head: MessageHead) -> None:
        """The request has been read."""

    def answers(self, answer: bytes | GrpcEnd, error: RepoAgentError | None = None) -> None:
        """``answer`` goes to the client. ``error``: its text."""

    def ends(self, answer: bytes | GrpcEnd = b"") -> None:
        """The request has been answered, last with ``answer``."""


NO_LINE: Final = RequestLine()


class LoggedLine(RequestLine):
    """One that goes to ``log``."""

    def __init__(self, log: RequestLog, running: RunningRequest) -> None:
        self._log = log
        self._running = running
        self._sent = 0

    def asks(self, head: MessageHead) -> None:
        self._running.model, self._running.version = head.model, head.version
        self._running.request = self._running.request or head.id

    def answers(self, answer: bytes | GrpcEnd, error: RepoAgentError | None = None) -> None:
        if isinstance(answer, GrpcEnd):
            self._running.status = answer.code
            return
        self._sent += len(answer)
        if error is not None:
            self._running.status = code_for(error).value[0]

    def ends(self, answer: bytes | GrpcEnd = b"") -> None:
        self.answers(answer)
        self._running.end(self._log, self._sent)
