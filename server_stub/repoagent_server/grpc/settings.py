"""``LogSettings`` and ``TraceSetting``: the extensions of logging and tracing over gRPC. Texts are Triton's."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.handlers.log_settings import LOG_FILE_IS_FIXED, LOG_FORMATS, LogChanges
from repoagent_server.handlers.trace_settings import TraceChanges

__all__ = ["log_changes", "log_message", "trace_changes", "trace_message"]


_LISTS = frozenset({"trace_level", "trace_file"})


def trace_changes(message: pb.TraceSettingRequest) -> TraceChanges:
    """The settings in ``message``; one without a value takes a change back.

    Raises:
        InvalidArgumentError: a number has several values.
    """
    changes: dict[str, str | Sequence[str] | None] = {}
    for name, setting in message.settings.items():
        values = list(setting.value)
        if name in _LISTS:
            changes[name] = values or None
        elif len(values) > 1:
            raise InvalidArgumentError(f"expect only 1 value for '{name}'")
        else:
            changes[name] = values[0] if values else None
    return changes


def trace_message(settings: Mapping[str, str | list[str]]) -> pb.TraceSettingResponse:
    """The settings as a message."""
    message = pb.TraceSettingResponse()
    for name, value in settings.items():
        message.settings[name].value.extend([value] if isinstance(value, str) else value)
    return message


#: Setting -> the field that carries it, and what Triton calls its type.
_FIELDS: Final[Mapping[str, tuple[str, str]]] = {
    "log_file": ("string_param", "string"),
    "log_info": ("bool_param", "boolean"),
    "log_warning": ("bool_param", "boolean"),
    "log_error": ("bool_param", "boolean"),
    "log_verbose_level": ("uint32_param", "int32"),
    "log_format": ("string_param", "string"),
}


def log_changes(message: pb.LogSettingsRequest) -> LogChanges:
    """What ``message`` asks for, checked in Triton's order; names that are not known ask for nothing.

    Raises:
        InvalidArgumentError: a value has the wrong type, or the format is not known.
        UnsupportedError: the file of the log is to be another one.
    """
    settings = message.settings
    if "log_file" in settings:
        raise UnsupportedError(LOG_FILE_IS_FIXED)
    values = {name: _value(name, settings[name]) for name in _FIELDS if name in settings}
    log_format = values.get("log_format")
    if log_format is not None and log_format not in LOG_FORMATS:
        raise InvalidArgumentError(f"invalid argument for log_format, got: {log_format}")
    return LogChanges(
        info=values.get("log_info"),
        warning=values.get("log_warning"),
        error=values.get("log_error"),
        verbose_level=values.get("log_verbose_level"),
        format=log_format,
    )


def _value(name: str, value: pb.LogSettingsRequest.SettingValue) -> Any:
    field, kind = _FIELDS[name]
    if value.WhichOneof("parameter_choice") != field:
        raise InvalidArgumentError(f"expect {kind} for '{name}'")
    return getattr(value, field)


def log_message(settings: Mapping[str, Any]) -> pb.LogSettingsResponse:
    """The settings as a message."""
    message = pb.LogSettingsResponse()
    for name, value in settings.items():
        setattr(message.settings[name], _FIELDS[name][0], value)
    return message
