"""Values of an engine's interface: the types of elements, tensors, shapes and profiles, and how a plan is opened.

Memory is an address, on the device or on the host. Work is enqueued on a stream and done in the order of that stream;
events order streams among each other, and let the host wait. :mod:`repoagent.engines.cuda` does that with CUDA and
TensorRT, and a stand-in over ONNX Runtime in the tests. Both raise errors of :mod:`repoagent.errors` only.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt


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


Shape = tuple[int, ...]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """One input or output of an engine. A dimension that varies is -1."""

    name: str
    is_input: bool
    element: ElementType
    shape: Shape
    on_host: bool = False
    """A shape tensor: its values are read or written on the host, and its address is one of the host."""
    alias_of: str | None = None
    """For an output that shares the memory of an input: the name of that input."""


@dataclass(frozen=True, slots=True)
class ShapeRange:
    """What a profile allows of one input: its shape or, for a shape tensor, its values."""

    least: Shape
    best: Shape
    most: Shape

    def allows(self, given: Sequence[int]) -> bool:
        """Whether ``given`` lies in the range, in every dimension."""
        return len(given) == len(self.least) and all(
            low <= one <= high for low, one, high in zip(self.least, given, self.most, strict=True)
        )

    def __str__(self) -> str:
        return f"{list(self.least)} to {list(self.most)}"


@dataclass(frozen=True, slots=True)
class Profile:
    """The shapes for which kernels were chosen together."""

    shapes: Mapping[str, ShapeRange] = field(default_factory=dict)
    values: Mapping[str, ShapeRange] = field(default_factory=dict)
    """Of shape tensors, the values."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """How a plan is opened."""

    device: int = 0
    host_code_allowed: bool = False
    """Whether the plan may bring machine code for the host: an operator's decision, as it runs in this process."""
    runtime_cache: str = ""
    """A file that keeps what TensorRT for RTX compiles on this machine; empty for none."""
