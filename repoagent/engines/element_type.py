"""The types of the elements of an engine's tensors."""

import enum
from typing import Any, Final

import numpy as np

__all__ = ["ElementType"]


class ElementType(enum.Enum):
    """A type under TensorRT's name for it. The value is the size of one element in bits."""

    FLOAT = ("FLOAT", 32)
    HALF = ("HALF", 16)
    BF16 = ("BF16", 16)
    INT8 = ("INT8", 8)
    UINT8 = ("UINT8", 8)
    INT32 = ("INT32", 32)
    INT64 = ("INT64", 64)
    BOOL = ("BOOL", 8)
    FP8 = ("FP8", 8)
    INT4 = ("INT4", 4)
    FP4 = ("FP4", 4)
    E8M0 = ("E8M0", 8)

    @property
    def bits(self) -> int:
        """The size of one element."""
        return self.value[1]

    @property
    def numpy(self) -> "np.dtype[Any] | None":
        """How an element lies in an array; BF16 as its bits, and None for a type that no array here holds."""
        return _NUMPY.get(self)

    def byte_size(self, elements: int) -> int:
        """The size of so many elements; two of INT4 or FP4 share a byte."""
        return (elements * self.bits + 7) // 8


_NUMPY: Final[dict[ElementType, "np.dtype[Any]"]] = {
    ElementType.FLOAT: np.dtype(np.float32),
    ElementType.HALF: np.dtype(np.float16),
    ElementType.BF16: np.dtype(np.uint16),
    ElementType.INT8: np.dtype(np.int8),
    ElementType.UINT8: np.dtype(np.uint8),
    ElementType.INT32: np.dtype(np.int32),
    ElementType.INT64: np.dtype(np.int64),
    ElementType.BOOL: np.dtype(np.bool_),
}
