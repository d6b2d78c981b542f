"""The trace extension: which requests are traced, asked for and changed while the server runs. Texts are Triton's."""

import re
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from repoagent.errors import InvalidArgumentError, RepoAgentError, UnsupportedError
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
