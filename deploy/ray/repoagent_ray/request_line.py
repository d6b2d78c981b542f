"""The line of a request over gRPC in the request log of an ingress, which sees messages and no tensors."""

from dataclasses import dataclass
from typing import Final

from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.response import code_for
from repoagent_server.grpc.wire import LONG_MESSAGE, check_infer, split_raw
from repoagent_server.shared.request_log import RequestLog, RunningRequest

from repoagent.errors import RepoAgentError
from repoagent.limits import Limits
from repoagent_ray.wire import GrpcEnd


@dataclass(frozen=True, slots=True)
class MessageHead:
    """The first fields of a request."""

    model: str
    version: str
    id: str


def head_of(message: bytes, limits: Limits) -> MessageHead:
    """Read as a replica reads it: by the parser of the protocol, with which a field that comes twice counts last.

    The raw tensors of a large message are stepped over.

    Raises:
        DecodeError: it is not a request.
        InvalidArgumentError: it has more fields than ``limits`` allow.
    """
    if len(message) >= LONG_MESSAGE:
        check_infer(message, limits)
        message = bytes(split_raw(message)[0])
    request = pb.ModelInferRequest.FromString(message)
    return MessageHead(request.model_name, request.model_version, request.id)


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
