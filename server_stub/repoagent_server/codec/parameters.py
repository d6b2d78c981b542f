"""The ``parameters`` of an inference request: those with a meaning of their own, and the rest, which the model sees."""

from collections.abc import Callable
from typing import Any, Final

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.request import AskedFields, ParameterValue
from repoagent_server.codec.fields import as_bool, as_string, as_unsigned, members

_INT64: Final = range(-(2**63), 2**63)


def read_parameters(
    value: object, fields: AskedFields, parameters: dict[str, ParameterValue], limits: Limits = DEFAULT_LIMITS
) -> bool:
    """Put the members of ``value`` into ``fields`` or ``parameters``; True if unnamed outputs are wanted in binary.

    Raises:
        InternalError: a member with a meaning has the wrong type.
        InvalidArgumentError: another one has a type that no parameter can have, or a reserved name.
    """
    try:
        items = members(value).items()
    except InternalError as error:
        raise InternalError(f"failed to get request params.: {error}") from None
    check_parameters(len(items), limits)
    binary = False
    for name, member in items:
        if name == "binary_data_output":
            binary = as_bool(member, _unable(name))
        elif name in _SETTERS:
            _SETTERS[name](fields, member)
        else:
            parameters[name] = _plain(name, member)
    return binary


def check_parameters(count: int, limits: Limits) -> None:
    """Refuse more parameters than a request may have."""
    if count > limits.request_parameters:
        raise InvalidArgumentError(
            f"the request has {count} parameters, and at most {limits.request_parameters} are allowed "
            f"({limits.flag('request_parameters')})"
        )


def _sequence_id(fields: AskedFields, value: Any) -> None:
    if type(value) is int and value >= 0:
        fields["correlation_id"] = as_unsigned(value)
    else:
        fields["correlation_id"] = as_string(value, _unable("sequence_id"))


def _sequence_start(fields: AskedFields, value: Any) -> None:
    fields["sequence_start"] = as_bool(value, _unable("sequence_start"))


def _sequence_end(fields: AskedFields, value: Any) -> None:
    fields["sequence_end"] = as_bool(value, _unable("sequence_end"))


def _priority(fields: AskedFields, value: Any) -> None:
    fields["priority"] = as_unsigned(value, _unable("priority"))


def _timeout(fields: AskedFields, value: Any) -> None:
    fields["timeout_us"] = as_unsigned(value, _unable("timeout"))


_SETTERS: Final[dict[str, Callable[[AskedFields, Any], None]]] = {
    "sequence_id": _sequence_id,
    "sequence_start": _sequence_start,
    "sequence_end": _sequence_end,
    "priority": _priority,
    "timeout": _timeout,
}


def _plain(name: str, value: object) -> ParameterValue:
    if name.startswith("triton_"):
        raise InvalidArgumentError(
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
        )
    return parameter_value(name, value)


def parameter_value(name: str, value: object) -> ParameterValue:
    """``value`` as request parameter ``name``; a whole number of more than 64 bits becomes a double.

    Raises:
        InvalidArgumentError: its type is one that no parameter can have.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value not in _INT64:
        return float(value)
    if isinstance(value, (str, bool, int, float)):
        return value
    raise InvalidArgumentError(f"parameter '{name}' has invalid type. It should be either 'int', 'bool', or 'string'.")


def _unable(name: str) -> str:
    return f"Unable to parse '{name}': "
