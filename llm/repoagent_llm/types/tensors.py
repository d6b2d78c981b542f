"""Tensors of any framework in, NumPy arrays out; and back into the caller's framework when asked."""

import sys
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
_WIDENED: Final = ("bfloat16", "float8")


def to_numpy(value: object, where: str = "tensor") -> Array:
    """The value as a NumPy array, without a copy where the producer allows it.

    Accepts NumPy arrays and scalars, sequences of numbers, and anything with ``__dlpack__``, ``__array__`` or the
    buffer protocol. Floats that NumPy lacks, bfloat16 and those of eight bits, become float32. Raises ``TypeError``
    for anything else, for device memory, and for other element types that NumPy lacks.
    """
    if any(name in str(getattr(value, "dtype", "")) for name in _WIDENED):
        value = _widened(value, where)
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            if not hasattr(value, "__array__"):
                raise TypeError(f"{where}: this {type(value).__name__} cannot be read on the CPU: {error}") from error
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        raise TypeError(f"{where} must be a tensor, not {type(value).__name__}")
    return array


def _widened(value: Any, where: str) -> Any:
    """In single precision, which every framework has a way to; values do not change."""
    try:
        return value.float() if hasattr(value, "float") else value.astype(np.float32)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        raise TypeError(f"{where}: this {type(value).__name__} of {value.dtype} cannot be read: {error}") from error


def to_framework(array: Array, like: object) -> Any:
    """``array`` as a tensor of the framework that ``like`` belongs to; NumPy if that is unknown.

    Frameworks are never imported here: one whose tensor the caller holds is loaded already.
    """
    package = type(like).__module__.partition(".")[0]
    framework = sys.modules.get(package)
    if package == "numpy" or framework is None or not hasattr(framework, "from_dlpack"):
        return array
    return framework.from_dlpack(array)
