"""The request log and the audit log: each process of the application has files of its own, as one cannot share them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from ray import serve
from repoagent_server.access.access import Denials
from repoagent_server.shared.request_log import RequestLog

import repoagent
from repoagent.audit import NO_AUDIT, Audit
from repoagent.audit.log import AuditLog, audit_key
from repoagent.errors import UnavailableError
from repoagent_ray.settings import Settings

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
