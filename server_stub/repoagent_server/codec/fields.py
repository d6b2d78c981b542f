"""Typed access to parsed JSON, and the ``parameters`` of a request. The texts are Triton's: clients compare them."""

from collections.abc import Callable
from typing import Any, Final

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.request import AskedFields, ParameterValue

MISSING: Final = object()
"""What a look-up gives for a member that is not there; None is JSON's null."""

_ARTICLES: Final = {
    "string": "non-string as string",
    "boolean": "non-boolean as boolean",
    "unsigned": "non-unsigned-integer as unsigned-integer",
    "signed": "non-signed-integer as signed-integer",
    "double": "non-number as double",
    "array": "non-array as array",
    "object": "non-object as object",
}

MAX_UNSIGNED: Final = 2**64 - 1
"""The largest number that Triton's parser takes for a whole one."""


def complaint(kind: str) -> str:
    """The text for a value that is not a ``kind`` ("string", "boolean", "unsigned", "signed", "double", ...)."""
    return f"attempt to access JSON {_ARTICLES[kind]}"


def find(value: object, name: str) -> Any:
    """The member ``name`` of ``value``, or MISSING if ``value`` is not an object or has no such member."""
    return value.get(name, MISSING) if type(value) is dict else MISSING


def members(value: object) -> dict[str, Any]:
    """``value`` as an object.

    Raises:
        InternalError: it is something else.
    """
    if type(value) is dict:
        return value
    raise InternalError("attempt to get members for non-object")


def as_string(value: object, prefix: str = "") -> str:
    if type(value) is str:
        return value
    raise InternalError(prefix + complaint("string"))


def as_bool(value: object, prefix: str = "") -> bool:
    if type(value) is bool:
        return value
    raise InternalError(prefix + complaint("boolean"))


def as_unsigned(value: object, prefix: str = "") -> int:
    if type(value) is int and 0 <= value <= MAX_UNSIGNED:
        return value
    raise InternalError(prefix + complaint("unsigned"))


def string_field(value: object, name: str) -> str:
    """The string member ``name``; the error states that it could not be parsed, and why."""
    found = find(value, name)
    if type(found) is str:
        return found
    raise _unparsable(name, found, "string")


def array_field(value: object, name: str) -> list[Any]:
    """The array member ``name``; the error states that it could not be parsed, and why."""
    found = find(value, name)
    if type(found) is list:
        return found
    raise _unparsable(name, found, "array")


def _unparsable(name: str, found: object, kind: str) -> InternalError:
    reason = f"attempt to access non-existing object member '{name}'" if found is MISSING else complaint(kind)
    return InternalError(f"Unable to parse '{name}': {reason}")


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
        elif name in _KNOWN:
            field, read = _KNOWN[name]
            fields[field] = read(member, _unable(name))  # type: ignore[literal-required]
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


def _sequence_id(value: Any, prefix: str) -> int | str:
    return as_unsigned(value) if type(value) is int and value >= 0 else as_string(value, prefix)


_KNOWN: Final[dict[str, tuple[str, Callable[[Any, str], Any]]]] = {
    "sequence_id": ("correlation_id", _sequence_id),
    "sequence_start": ("sequence_start", as_bool),
    "sequence_end": ("sequence_end", as_bool),
    "priority": ("priority", as_unsigned),
    "timeout": ("timeout_us", as_unsigned),
}
"""The parameters with a meaning: the field of a request that each is, and what reads it."""


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
