"""Outputs into shared memory: each is written once."""

import struct
from typing import Final

import numpy as np

from repoagent.errors import InternalError
from repoagent.serving.requests.tensor import Array, DataType, Tensor
from repoagent_server.codec.datatypes import BY_TYPE
from repoagent_server.handlers.shared_memory import Span

__all__ = ["store"]

_LENGTH: Final = struct.Struct("<I")


def store(name: str, tensor: Tensor, span: Span) -> None:
    """Write output ``name`` to where the client wants it. An array that is there already is left alone.

    Raises:
        InternalError: it needs more bytes than there are (Triton's text).
        InvalidArgumentError: the client has made the region smaller meanwhile.
    """
    if tensor.data_type is DataType.BYTES:
        elements = [_as_bytes(element) for element in tensor.array.ravel().tolist()]
        _check_room(name, span, sum(map(len, elements)) + _LENGTH.size * len(elements))
        _write_elements(elements, span.view())
        return
    info = BY_TYPE[tensor.data_type]
    _check_room(name, span, tensor.array.size * info.size)
    _write_numbers(tensor.array, np.ndarray(tensor.array.shape, info.dtype, span.view()))


def _check_room(name: str, span: Span, needed: int) -> None:
    if needed > span.byte_size:
        raise InternalError(
            f"shared memory size specified with the request for output '{name}' ({span.byte_size} bytes) should be at "
            f"least {needed} bytes to hold the results"
        )


def _write_numbers(array: Array, label: Array) -> None:
    there_already = array.ctypes.data == label.ctypes.data and array.strides == label.strides
    if not there_already:
        _copy(label, array)


def _copy(label: Array, array: Array) -> None:
    np.copyto(label, array, casting="unsafe")


def _write_elements(elements: list[bytes], target: memoryview) -> None:
    position = 0
    for element in elements:
        _LENGTH.pack_into(target, position, len(element))
        position += _LENGTH.size
        target[position : position + len(element)] = element
        position += len(element)


def _as_bytes(element: bytes | str) -> bytes:
    return element.encode() if isinstance(element, str) else element
