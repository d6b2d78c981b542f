"""The protocol's data types, and tensors as bytes: views of the body, or elements with a length of 4 bytes each."""

import enum
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, array_at


def too_many_texts(most: int) -> InvalidArgumentError:
    """The error for a request of more than ``most`` elements of BYTES."""
    return InvalidArgumentError(
        f"the request has more than {most} elements of BYTES; send them in several requests, or raise "
        f"{Limits.flag('request_texts')}"
    )


@dataclass(slots=True)
class RequestLabel:
    """A request on its way in: the model it names, and its id once that is known."""

    model: str
    request_id: str = ""
    limits: Limits = DEFAULT_LIMITS
    texts: int = 0
    """Elements of BYTES that it has, so far."""

    def count_texts(self, count: int) -> None:
        """Count ``count`` more elements of BYTES.

        Raises:
            InvalidArgumentError: they are too many.
        """
        self.texts += count
        if self.texts > self.limits.request_texts:
            raise too_many_texts(self.limits.request_texts)

    def error(self, text: str) -> InvalidArgumentError:
        """``text`` with the request's id in front, as Triton's core words what is wrong with an inference request."""
        return InvalidArgumentError(f"[request id: {self.request_id or '<id_unknown>'}] {text}")

    def wrong_count(self, name: str, expected: int, found: int) -> InvalidArgumentError:
        """BYTES input ``name`` has ``found`` elements where its shape has ``expected``."""
        where = f"inference input '{name}' for model '{self.model}'"
        if found < expected:
            return self.error(f"expected {expected} string elements for {where}, got {found}")
        return self.error(f"unexpected number of string elements {expected + 1} for {where}, expecting {expected}")

    def wrong_size(self, name: str, expected: int, found: int) -> InvalidArgumentError:
        """Input ``name`` has ``found`` bytes where its type and shape need ``expected``."""
        return self.error(
            f"input byte size mismatch for input '{name}' for model '{self.model}'. Expected {expected}, got {found}"
        )


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


Buffer = bytes | bytearray | memoryview

_LENGTH: Final = struct.Struct("<I")
_AT_ONCE: Final = 1 << 16
"""Elements that are handled in one go."""


def tensor_array(info: TypeInfo, data: Buffer, shape: Sequence[int], name: str, label: RequestLabel) -> Array:
    """The array of input ``name`` whose bytes are ``data``: a view of them where the type has a fixed size.

    Raises:
        InvalidArgumentError: they are too few or too many, or are no elements of BYTES.
    """
    if info.json is JsonKind.STRING:
        return bytes_array(unpack_bytes(memoryview(data), prod(shape), name, label)).reshape(shape)
    expected = prod(shape) * info.size
    if len(data) != expected:
        raise label.wrong_size(name, expected, len(data))
    return array_at(data, 0, info.dtype, shape)


def unpack_bytes(data: memoryview, count: int, name: str, label: RequestLabel) -> list[bytes]:
    """The ``count`` elements of BYTES input ``name``, which take all of ``data``.

    Raises:
        InvalidArgumentError: a length runs past the end, or there are more or fewer elements, or too many.
    """
    label.count_texts(count)
    elements: list[bytes] = []
    for element in _elements(data, name, label):
        if len(elements) == count:
            raise label.wrong_count(name, count, count + 1)
        elements.append(element)
    if len(elements) != count:
        raise label.wrong_count(name, count, len(elements))
    return elements


def _elements(data: memoryview, name: str, label: RequestLabel) -> Iterator[bytes]:
    position, end = 0, len(data)
    while position < end:
        left = end - position - _LENGTH.size
        if left < 0:
            raise label.error(
                f"incomplete string length indicator for inference input '{name}' for model '{label.model}', expecting "
                f"4 bytes but only {left + 4} bytes available. Please make sure the string length indicator is in one "
                "buffer."
            )
        (length,) = _LENGTH.unpack_from(data, position)
        if left < length:
            raise InvalidArgumentError(
                f"incomplete string data for inference input '{name}', expecting string of length {length} but only "
                f"{left} bytes available"
            )
        position += _LENGTH.size
        yield bytes(data[position : position + length])
        position += length


def bytes_array(elements: Sequence[bytes]) -> Array:
    """One-dimensional array of objects. (NumPy would make fixed-width strings, which lose NULs at the end.)"""
    array = np.empty(len(elements), np.object_)
    for start in range(0, len(elements), _AT_ONCE):  # others have a turn in between
        array[start : start + _AT_ONCE] = elements[start : start + _AT_ONCE]
    return array


def pack_bytes(elements: Iterable[bytes]) -> bytes:
    """The other way round."""
    packed = bytearray()
    parts: list[bytes] = []
    for element in elements:
        parts += (_LENGTH.pack(len(element)), element)
        if len(parts) >= _AT_ONCE:
            packed += b"".join(parts)
            parts.clear()
    return bytes(packed) + b"".join(parts) if packed else b"".join(parts)
