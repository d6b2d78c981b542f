"""``TraceSetting``: the trace extension over gRPC."""

from collections.abc import Mapping, Sequence

from repoagent.errors import InvalidArgumentError
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.handlers.trace_settings import TraceChanges

__all__ = ["trace_changes", "trace_message"]

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
