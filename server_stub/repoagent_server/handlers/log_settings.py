"""The logging extension: what the log of the process writes, asked for and changed while the server runs."""

from dataclasses import asdict, dataclass
from typing import Any, Final

from repoagent.audit import Audit
from repoagent.errors import InvalidArgumentError
from repoagent.server.enums import LogLevel
from repoagent.server.logs import FORMATS, server_log

#: The answer to a client that wants to name the log's file: only the operator names files of the server.
LOG_FILE_IS_FIXED: Final = "log file location can not be updated through network protocol"

#: What ``log_format`` can be.
LOG_FORMATS: Final = tuple(FORMATS)

_MAX_VERBOSE: Final = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChanges:
    """What is to be changed; None stays as it is."""

    info: bool | None = None
    warning: bool | None = None
    error: bool | None = None
    verbose_level: int | None = None
    format: str | None = None
    """One of :data:`LOG_FORMATS`."""


def log_settings() -> dict[str, Any]:
    """The settings of the one log that a process has, under Triton's names and in its order."""
    log = server_log()
    return {
        "log_file": log.path,
        "log_info": log.enabled(LogLevel.INFO),
        "log_warning": log.enabled(LogLevel.WARN),
        "log_error": log.enabled(LogLevel.ERROR),
        "log_verbose_level": log.verbose,
        "log_format": log.format_name,
    }


def update_log(changes: LogChanges, audit: Audit) -> None:
    """Make all changes, at once. ``audit`` gets them.

    Raises:
        InvalidArgumentError: the verbose level is too large; nothing has been changed.
        AuditError: the change cannot be recorded, and must be; nothing has been changed.
    """
    verbose = changes.verbose_level
    if verbose is not None and verbose > _MAX_VERBOSE:
        raise InvalidArgumentError(f"'log_verbose_level' must be at most {_MAX_VERBOSE}, got: {verbose}")
    made = {name: value for name, value in asdict(changes).items() if value is not None}
    if made:
        audit.demand("settings", "accepted", {"setting": "log", "before": log_settings(), "change": made})
    log = server_log()
    for level, on in (
        (LogLevel.INFO, changes.info),
        (LogLevel.WARN, changes.warning),
        (LogLevel.ERROR, changes.error),
    ):
        if on is not None:
            log.enable(level, on)
    if verbose is not None:
        log.set_verbose(verbose)
    if changes.format is not None:
        log.set_format(changes.format)
