"""The two data types that ONNX Runtime's Python interface does not take as they are: BYTES and BF16."""

import ctypes
from typing import Any, Final

import numpy as np
import onnxruntime

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.tensor import Array

__all__ = ["bfloat16_from_value", "bfloat16_to_value", "bytes_from_text", "bytes_to_text"]

_BFLOAT16: Final = 16  # TensorProto.BFLOAT16


def _decode(element: Any) -> str:
    return element.decode("utf-8") if isinstance(element, bytes) else str(element)


def _map(function: Any, array: Array) -> Array:
    result = np.empty(array.size, dtype=object)
    result[:] = [function(element) for element in array.flat]
    return result.reshape(array.shape)


def bytes_to_text(name: str, array: Array) -> Array:
    """An array of ``str`` from one of ``bytes``: the string tensors of ONNX hold UTF-8 text.

    Raises:
        InvalidArgumentError: an element is not UTF-8.
    """
    try:
        return _map(_decode, array)
    except UnicodeDecodeError as error:
        raise InvalidArgumentError(
            f"input '{name}' has an element that is not UTF-8 text, which is all that an ONNX string tensor can hold: "
            f"{error.reason} at byte {error.start}"
        ) from None


def bytes_from_text(array: Array) -> Array:
    """An array of ``bytes`` from one of ``str``."""
    return _map(lambda element: str(element).encode("utf-8"), array)


def bfloat16_to_value(array: Array) -> Any:
    """A raw OrtValue of type bfloat16 over the bits in ``array`` (uint16)."""
    bits = np.ascontiguousarray(array, dtype=np.uint16)
    return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, _BFLOAT16)._ortvalue


def bfloat16_from_value(value: Any) -> Array:
    """The bits of a raw OrtValue of type bfloat16, copied (NumPy has no such type)."""
    shape = tuple(value.shape())
    size = value.tensor_size_in_bytes()
    return np.frombuffer(ctypes.string_at(value.data_ptr(), size), dtype=np.uint16).reshape(shape)
