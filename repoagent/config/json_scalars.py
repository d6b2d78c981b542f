"""Single values of the JSON form: what fits which type of field."""

import re
import struct
from collections.abc import Callable
from typing import Any, Final

from google.protobuf.descriptor import FieldDescriptor

from repoagent.config.schema import enum_of
from repoagent.config.suggestions import did_you_mean

__all__ = ["Misfit", "read_scalar"]

_INTEGER: Final = re.compile(r"[+-]?\d{1,20}")
_RANGES: Final = {
    FieldDescriptor.CPPTYPE_INT32: range(-(2**31), 2**31),
    FieldDescriptor.CPPTYPE_INT64: range(-(2**63), 2**63),
    FieldDescriptor.CPPTYPE_UINT32: range(2**32),
    FieldDescriptor.CPPTYPE_UINT64: range(2**64),
}


class Misfit(Exception):
    """A value that does not fit, at a path such as ``input[0].dims``."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}" if path else reason)


def read_scalar(field: FieldDescriptor, value: Any, path: str) -> Any:
    """``value`` as ``field`` holds it; raises :class:`Misfit`. Values are never repeated in the reason."""
    return _READERS[field.cpp_type](field, value, path)


def _read_integer(field: FieldDescriptor, value: Any, path: str) -> int:
    allowed = _RANGES[field.cpp_type]
    number = _as_integer(value)
    if number is None or number not in allowed:
        raise Misfit(path, f"expected an integer from {allowed.start} to {allowed.stop - 1}")
    return number


def _as_integer(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and _INTEGER.fullmatch(value.strip()):
        return int(value)
    return None


def _read_float(field: FieldDescriptor, value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise Misfit(path, "expected a number")
    try:
        number = float(value)
        if field.cpp_type == FieldDescriptor.CPPTYPE_FLOAT:
            struct.pack("f", number)
    except (ValueError, OverflowError):
        raise Misfit(path, "expected a number in range") from None
    return number


def _read_bool(_field: FieldDescriptor, value: Any, path: str) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value in ("true", "false"):
        return value == "true"
    raise Misfit(path, "expected true or false")


def _read_string(_field: FieldDescriptor, value: Any, path: str) -> str:
    if not isinstance(value, str):
        raise Misfit(path, "expected a string in quotes")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Misfit(path, "expected text; it holds half of a surrogate pair") from None
    return value


def _read_enum(field: FieldDescriptor, value: Any, path: str) -> int:
    enum = enum_of(field)
    if isinstance(value, str) and not _INTEGER.fullmatch(value.strip()):
        named = enum.values_by_name.get(value.upper())
        if named is None:
            raise Misfit(path, f"{enum.name} has no value '{value}'{did_you_mean(value.upper(), enum.values_by_name)}")
        return named.number
    number = _as_integer(value)
    if number is None or number not in enum.values_by_number:
        raise Misfit(path, f"expected one of {', '.join(enum.values_by_name)}")
    return number


_READERS: Final[dict[int, Callable[[FieldDescriptor, Any, str], Any]]] = {
    FieldDescriptor.CPPTYPE_INT32: _read_integer,
    FieldDescriptor.CPPTYPE_INT64: _read_integer,
    FieldDescriptor.CPPTYPE_UINT32: _read_integer,
    FieldDescriptor.CPPTYPE_UINT64: _read_integer,
    FieldDescriptor.CPPTYPE_FLOAT: _read_float,
    FieldDescriptor.CPPTYPE_DOUBLE: _read_float,
    FieldDescriptor.CPPTYPE_BOOL: _read_bool,
    FieldDescriptor.CPPTYPE_STRING: _read_string,
    FieldDescriptor.CPPTYPE_ENUM: _read_enum,
}
