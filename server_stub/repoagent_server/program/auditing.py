"""The audit log of the program: opened at the start, closed at the end, with a line for both."""

import dataclasses
import enum
import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from repoagent.audit import OPERATOR, Audit
from repoagent.audit.lines import canonical
from repoagent.audit.log import AuditLog, audit_key
from repoagent.serving.measuring.prometheus import Family
from repoagent_server.access.access_file import AccessChange
from repoagent_server.program.options import ServeOptions


@contextmanager
def audit_log(options: ServeOptions) -> Iterator[AuditLog | None]:
    """The log that ``options`` ask for, with lines for the start and the stop of the server; None without one.

    Raises:
        RepoAgentError: it cannot be opened; or its first line cannot be written, and the log is required.
    """
    audit = options.audit
    if audit.file is None:
        yield None
        return
    log = AuditLog(
        audit.file,
        required=audit.required,
        sync=audit.sync,
        largest=audit.rotate_bytes,
        key=None if audit.key is None else audit_key(audit.key),
    )
    try:
        log.demand("server", "started", _started(options))
        yield log
        log.record("server", "stopped", {"pid": os.getpid()})
    except BaseException as error:
        log.record("server", "failed", {"pid": os.getpid(), "error": str(error) or type(error).__name__})
        raise
    finally:
        log.close()


class AuditMetrics:
    """Reads the counters of a log."""

    def __init__(self, log: AuditLog) -> None:
        self._log = log

    def families(self) -> Iterable[Family]:
        """Lines, failures, and notes that came too fast."""
        log = self._log
        counted = {
            "repoagent_audit_lines_total": ("Lines written to the audit log", log.lines),
            "repoagent_audit_failures_total": ("Lines that could not be written to the audit log", log.failures),
            "repoagent_audit_suppressed_total": (
                "Denied requests without a line of their own in the audit log",
                log.suppressed,
            ),
        }
        return [Family(name, "counter", text, [((), value)]) for name, (text, value) in counted.items()]


def _started(options: ServeOptions) -> dict[str, Any]:
    files = {"agent_policy": options.agent_policy, "access": options.access}
    return {
        "version": version("repoagent-server"),
        "pid": os.getpid(),
        "repositories": [str(one) for one in options.model_repository],
        "control_mode": options.model_control_mode,
        "configuration_sha256": configuration_digest(options),
        "files": {name: _file_digest(path) for name, path in files.items() if path is not None},
    }


def note_access_change(audit: Audit, change: AccessChange) -> None:
    """Note that the access file has been read again. Never waits: a disk that hangs must not keep rules from force."""
    what: dict[str, Any] = {"setting": "access", "sources": dict(change.sources), "clients": change.clients}
    if change.error:
        what["error"] = change.error
    audit.note("settings", "refused" if change.error else "accepted", what, OPERATOR)


def configuration_digest(options: ServeOptions) -> str:
    """The SHA-256 of the options, which changes when one of them does. Secrets among them are left out."""
    return hashlib.sha256(canonical(_stable(options))).hexdigest()


def _stable(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        shown = [field.name for field in dataclasses.fields(value) if field.repr]
        return {name: _stable(getattr(value, name)) for name in shown}
    if isinstance(value, Mapping):
        return {str(name): _stable(inner) for name, inner in value.items()}
    if isinstance(value, set | frozenset):
        return sorted(str(inner) for inner in value)
    if isinstance(value, list | tuple):
        return [_stable(inner) for inner in value]
    if isinstance(value, bool | int | None) and not isinstance(value, enum.Enum):
        return value
    return os.fspath(value) if isinstance(value, Path) else repr(value)


def _file_digest(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None  # what needs the file reports that
