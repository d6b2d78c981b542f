"""The trace and logging extensions: settings asked for and changed while the server runs. Texts are Triton's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final, TypeAlias

from repoagent.audit import Audit
from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
from repoagent.server.enums import LogLevel
from repoagent.server.logs import FORMATS, server_log
from repoagent.serving.tracing.trace_settings import LEVELS
from repoagent_server.shared.core import Core

TraceChanges: TypeAlias = Mapping[str, str | Sequence[str] | None]
"""Setting -> its new value as a text, the levels as a list; None takes a change back. What is not known is left out."""

#: The settings that are numbers: the values that they can have, which Triton's errors name.
_NUMBERS: Final[Mapping[str, range]] = {
    "trace_rate": range(2**32),
    "trace_count": range(-1, 2**31),
    "log_frequency": range(2**32),
}
_INT32: Final = range(-(2**31), 2**31)
_NUMBER: Final = re.compile(r"\s*([+-]?[0-9]+)")


def check_model(core: Core, model: str) -> None:
    """Refuse a model that is not there before anything else of a request is looked at."""
    if model and not core.model_loaded(model):
        raise InvalidArgumentError(f"Request for unknown model : {model}")


def update_traces(core: Core, model: str, changes: TraceChanges) -> None:
    """Change the settings of ``model``, or for "" those of all models: all changes or, where one is refused, none.

    Raises:
        InvalidArgumentError: a value makes no sense, or with these values nothing could be traced although a level is
            set.
        UnsupportedError: another file is asked for. Only the operator names files that the server writes.
        AuditError: the changes cannot be recorded, and must be.
    """
    if "trace_file" in changes:
        raise UnsupportedError("trace file location can not be updated through network protocol")
    wanted: dict[str, str | Sequence[str] | None] = {}
    if "trace_level" in changes:
        levels = _levels(changes["trace_level"])
        if levels is None or levels:
            wanted["trace_level"] = levels
    for name, allowed in _NUMBERS.items():
        if name in changes:
            value = changes[name]
            wanted[name] = None if value is None else _number(name, str(value), allowed)
    if wanted:
        _update(core, model, wanted)


def _update(core: Core, model: str, wanted: dict[str, str | Sequence[str] | None]) -> None:
    tracer, audit = core.tracer, core.audit
    before = tracer.settings(model).to_dict()
    what = {"setting": "trace", "model": model, "before": {name: before.get(name) for name in wanted}}
    audit.demand("settings", "accepted", {**what, "change": wanted})
    try:
        tracer.update(wanted, model)
    except RepoAgentError as error:
        audit.record("settings", "refused", {**what, "change": wanted, "error": str(error)})
        raise


def _levels(value: str | Sequence[str] | None) -> list[str] | None:
    """The levels that there are; what is none is passed over, as in Triton."""
    if value is None:
        return None
    if "OFF" in value and len(value) > 1:
        raise InvalidArgumentError("Expect only one trace level 'OFF' is specified")
    return [level for level in value if level in (*LEVELS, "OFF")]


def _number(name: str, text: str, allowed: range) -> str:
    """The number that ``text`` begins with, as C reads it."""
    match = _NUMBER.match(text)
    if match is None:
        raise InvalidArgumentError(f"Unable to parse '{name}', got: {text}")
    value = int(match[1])
    if name == "trace_count" and value in _INT32 and value < allowed.start:
        raise InvalidArgumentError(f"Unable to parse '{name}'. Expecting value >= {allowed.start}, got: {text}")
    if value not in _INT32 or value not in allowed:
        raise InvalidArgumentError(
            f"Unable to parse '{name}', value is out of range [ {allowed.start}, {allowed.stop - 1} ], got: {text}"
        )
    return str(value)


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
