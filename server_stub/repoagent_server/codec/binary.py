"""Tensors as bytes: fixed-size types are views of the body, BYTES elements a 4-byte length and that many bytes each."""

import struct
from collections.abc import Iterable, Iterator, Sequence
from math import prod
from typing import Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.tensor import Array
from repoagent_server.codec.datatypes import JsonKind, TypeInfo
from repoagent_server.codec.request_label import RequestLabel

Buffer = bytes | bytearray | memoryview

_LENGTH: Final = struct.Struct("<I")
_AT_ONCE: Final = 1 << 16
"""Elements that are handled in one go."""


def view(info: TypeInfo, body: Buffer, offset: int, shape: Sequence[int]) -> Array:
    """The tensor of ``shape`` that begins at ``offset`` of ``body``, without a copy unless it lies unaligned there.

    The caller has checked that the body is long enough.
    """
    array: Array = np.ndarray(shape, info.dtype, body, offset)
    return array if array.flags.aligned else array.copy()


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
    return view(info, data, 0, shape)


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
