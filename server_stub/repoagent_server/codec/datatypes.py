"""What the protocol's data types are called, and how each lies in memory and in JSON."""

import enum
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType

MAX_DIMENSIONS: Final = 64
"""NumPy's. The product of thousands of large numbers takes longer than the request it came in."""

MAX_ELEMENTS: Final = 2**63 - 1


def too_many_dimensions(name: str, count: int) -> InvalidArgumentError:
    """The error for input ``name``."""
    return InvalidArgumentError(f"input '{name}' has {count} dimensions, and at most {MAX_DIMENSIONS} are possible")


def too_many_elements(name: str) -> InvalidArgumentError:
    """The error for input ``name``."""
    return InvalidArgumentError(f"the shape of input '{name}' has more elements than 64 bits can count")


class JsonKind(enum.Enum):
    """How the elements of a type are written in JSON."""

    NONE = "none"
    BOOL = "bool"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    FLOAT = "float"
    STRING = "string"


@dataclass(frozen=True, slots=True)
class TypeInfo:
    """One data type. ``code`` is how ``array`` and ``struct`` of the standard library call a number of it."""

    name: str
    data_type: DataType
    dtype: np.dtype[Any]
    size: int
    json: JsonKind
    code: str = ""


_INTEGER_CODES: Final = {1: "b", 2: "h", 4: "i", 8: "q"}


def _describe(data_type: DataType) -> TypeInfo:
    dtype = NUMPY_TYPES[data_type]
    kind, code = _json_kind(data_type, dtype)
    size = 0 if data_type is DataType.BYTES else dtype.itemsize
    return TypeInfo(data_type.name, data_type, dtype, size, kind, code)


def _json_kind(data_type: DataType, dtype: np.dtype[Any]) -> tuple[JsonKind, str]:
    if data_type in (DataType.FP16, DataType.BF16):
        return JsonKind.NONE, ""
    if dtype.kind == "i":
        return JsonKind.SIGNED, _INTEGER_CODES[dtype.itemsize]
    if dtype.kind == "u":
        return JsonKind.UNSIGNED, _INTEGER_CODES[dtype.itemsize].upper()
    if dtype.kind == "f":
        return JsonKind.FLOAT, dtype.char
    return {"b": JsonKind.BOOL, "O": JsonKind.STRING}[dtype.kind], ""


#: Every type that a tensor can have, by the name that the protocol gives it.
BY_NAME: Final[dict[str, TypeInfo]] = {t.name: _describe(t) for t in DataType if t is not DataType.INVALID}

_INVALID: Final = TypeInfo("INVALID", DataType.INVALID, np.dtype(np.void), 0, JsonKind.NONE)

#: The same, by the type itself.
BY_TYPE: Final[dict[DataType, TypeInfo]] = {t: BY_NAME.get(t.name, _INVALID) for t in DataType}
