"""Typed access to parsed JSON. The texts are Triton's, because clients and their tests compare them."""

from typing import Any, Final

from repoagent.errors import InternalError

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
