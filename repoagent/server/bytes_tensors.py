"""BYTES tensors in memory: every element is a 4-byte little-endian length followed by that many bytes."""

import struct
from collections.abc import Iterable
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.server.datatypes import Array

__all__ = ["as_bytes_array", "deserialize", "serialize"]

_LENGTH: Final = struct.Struct("<I")


def as_bytes_array(array: Array) -> Array:
    """An object array of ``bytes`` in the shape of ``array``; text is encoded as UTF-8."""
    result: Array = np.empty(array.shape, dtype=object)
    result.reshape(-1)[:] = [_encode(element) for element in array.reshape(-1).tolist()]
    return result


def _encode(element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode("utf-8")
    return bytes(element) if isinstance(element, bytearray | memoryview) else str(element).encode("utf-8")


def serialize(elements: Iterable[bytes]) -> bytes:
    """The memory of a BYTES tensor with these elements."""
    pack = _LENGTH.pack
    return b"".join([part for element in elements for part in (pack(len(element)), element)])


def deserialize(memory: "memoryview[int] | bytes", shape: Iterable[int]) -> Array:
    """The elements in ``memory``, as an object array of ``shape``.

    Raises:
        InvalidArgumentError: the memory does not hold exactly the elements that the shape asks for.
    """
    elements = []
    place = 0
    while place + 4 <= len(memory):
        (length,) = _LENGTH.unpack_from(memory, place)
        end = place + 4 + length
        if end > len(memory):
            break
        elements.append(bytes(memory[place + 4 : end]))
        place = end
    result: Array = np.empty(tuple(shape), dtype=object)
    if place != len(memory) or len(elements) != result.size:
        raise InvalidArgumentError(
            f"BYTES tensor of shape {list(result.shape)} needs {result.size} elements, each a 4-byte length and its "
            f"bytes; its memory of {len(memory)} bytes holds {len(elements)}, and {len(memory) - place} bytes are left"
        )
    result.reshape(-1)[:] = elements
    return result
