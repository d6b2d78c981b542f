"""The request log and the audit log: each process of the application has files of its own, as one cannot share them."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ray import serve
from repoagent_server.access.access import Denials
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.grpc.response import code_for
from repoagent_server.grpc.wire import LONG_MESSAGE, check_infer, split_raw
from repoagent_server.shared.request_log import RequestLog, RunningRequest

import repoagent
from repoagent.audit import NO_AUDIT, Audit
from repoagent.audit.log import AuditLog, audit_key
from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.limits import Limits
from repoagent_ray.settings import Settings
from repoagent_ray.wire import GrpcEnd

_PRIVATE: Final = 0o700


def process_name() -> str:
    """What Ray calls this replica or ingress: no other one of the application is ever called so."""
    name: str = serve.get_replica_context().replica_id.unique_id
    return name


class Logs:
    """The logs that ``settings`` ask for. ``role``: "ingress" or "replica", which the files are named after."""

    def __init__(self, settings: Settings, role: str) -> None:
        """Open them.

        Raises:
            RepoAgentError: one cannot be opened, or its first line cannot be written.
        """
        self._name = f"{role}-{process_name()}.jsonl"
        self._log: AuditLog | None = None
        self.requests: RequestLog | None = None
        """Of an ingress only: there each request has its client, and its whole time."""
        if settings.audit_log is not None:
            self._log = AuditLog(
                self._file(settings.audit_log),
                required=settings.audit_required,
                key=None if settings.audit_key is None else audit_key(settings.audit_key),
            )
            self._log.demand("server", "started", _started(settings))
        if settings.request_log is not None and role == "ingress":
            self.requests = RequestLog(self._file(settings.request_log))
        self.denials = Denials(self.audit)

    @property
    def audit(self) -> Audit:
        """Gets what clients do."""
        return self._log or NO_AUDIT

    def close(self) -> None:
        """Write what waits."""
        if self._log is not None:
            self._log.record("server", "stopped", {"pid": os.getpid()})
            self._log.close()
        if self.requests is not None:
            self.requests.close()

    def _file(self, directory: str) -> Path:
        folder = Path(directory)
        try:
            folder.mkdir(_PRIVATE, parents=True, exist_ok=True)
        except OSError as error:
            raise UnavailableError(f"the directory for logs {folder} cannot be made: {error.strerror}") from error
        return folder / self._name


def _started(settings: Settings) -> Mapping[str, Any]:
    repositories = settings.model_repository
    shown = [repositories] if isinstance(repositories, str) else repositories
    return {"version": repoagent.__version__, "pid": os.getpid(), "repositories": shown}


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
