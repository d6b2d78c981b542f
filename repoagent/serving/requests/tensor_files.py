"""Tensors that come with a model: made of zeros, or read from its files in their binary form."""

import math
from collections.abc import Sequence
from typing import Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType
from repoagent.storage.files.files import ModelFiles

_MOST_TEXT: Final = 1 << 26
__all__ = ["blank", "parse_bytes_tensor", "read_tensor"]


def blank(data_type: DataType, dims: Sequence[int]) -> Array:
    """Zeros, or empty texts."""
    if data_type is DataType.BYTES:
        return np.full(dims, b"", dtype=object)
    return np.zeros(dims, dtype=NUMPY_TYPES[data_type])


def read_tensor(files: ModelFiles, path: str, place: str, data_type: DataType, dims: Sequence[int]) -> Array:
    """The tensor of that type and shape in a file of the model. ``place`` names in messages what it is for.

    Raises:
        InvalidArgumentError: the file does not hold as much.
        RepoAgentError: there is no such file.
    """
    count = math.prod(dims)
    fixed = data_type is not DataType.BYTES
    with files.open(path) as stream:  # no more than the tensor takes, whatever the size of the file is
        content = stream.read(count * NUMPY_TYPES[data_type].itemsize + 1 if fixed else _MOST_TEXT + 1)
    if not fixed and len(content) > _MOST_TEXT:
        raise InvalidArgumentError(f"{place}: file '{path}' has more than {_MOST_TEXT} bytes")
    if data_type is DataType.BYTES:
        array = parse_bytes_tensor(content)
    else:
        size = NUMPY_TYPES[data_type].itemsize
        if len(content) != count * size:
            raise InvalidArgumentError(f"{place}: file '{path}' has {len(content)} bytes, expected {count * size}")
        array = np.frombuffer(content, dtype=NUMPY_TYPES[data_type])
    if array.size != count:
        raise InvalidArgumentError(f"{place}: file '{path}' has {array.size} elements, expected {count}")
    return array.reshape(dims)


def parse_bytes_tensor(content: bytes) -> Array:
    """The elements of a BYTES tensor in its binary form: each is a 4-byte little-endian length and that many bytes.

    Raises:
        InvalidArgumentError: the lengths do not add up.
    """
    elements = []
    offset = 0
    while offset < len(content):
        end = offset + 4 + int.from_bytes(content[offset : offset + 4], "little")
        if offset + 4 > len(content) or end > len(content):
            raise InvalidArgumentError("a BYTES tensor ends in the middle of an element")
        elements.append(content[offset + 4 : end])
        offset = end
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array
