"""Values of an engine's interface: types of elements, tensors, shapes, profiles and the choice among them, options.

Memory is an address, on the device or on the host. Work is enqueued on a stream and done in the order of that stream;
events order streams among each other, and let the host wait. :mod:`repoagent.engines.cuda` does that with CUDA and
TensorRT, and a stand-in over ONNX Runtime in the tests. Both raise errors of :mod:`repoagent.errors` only.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.errors import InvalidArgumentError


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


_MOST_DIGITS: Final = 9
"""Of the number of a profile; Python refuses to read thousands of them."""


class Profiles:
    """The profiles of an engine that one instance uses, the tightest first."""

    def __init__(self, profiles: Sequence[Profile], names: Sequence[str] = ()) -> None:
        """``names``: ``instance_group.profile``; empty for all. ``InvalidArgumentError`` if the engine lacks one."""
        count = len(profiles)
        for name in names:
            if len(name) > _MOST_DIGITS or int(name) >= count:
                raise InvalidArgumentError(
                    f"instance_group names profile {name[:20]}, and the plan has {count}: 0 to {count - 1}"
                )
        self.indices = sorted(
            {int(name) for name in names} or range(count), key=lambda index: (_volume(profiles[index]), index)
        )
        self._all = profiles

    def choose(self, shapes: Mapping[str, Shape], values: Mapping[str, Sequence[int]]) -> int:
        """The tightest profile that allows these shapes of inputs, and these values of shape tensors.
        The ``InvalidArgumentError`` if none does lists what each one allows."""
        for index in self.indices:
            if _allows(self._all[index], shapes, values):
                return index
        given = ", ".join(f"'{name}' {list(one)}" for name, one in {**shapes, **values}.items())
        raise InvalidArgumentError(f"no profile of the plan allows the inputs {given}; {self._listed()}")

    def _listed(self) -> str:
        return "; ".join(f"profile {index} allows {_text(self._all[index])}" for index in self.indices)


def _allows(profile: Profile, shapes: Mapping[str, Shape], values: Mapping[str, Sequence[int]]) -> bool:
    return all(one.allows(shapes[name]) for name, one in profile.shapes.items() if name in shapes) and all(
        one.allows(values[name]) for name, one in profile.values.items() if name in values
    )


def _volume(profile: Profile) -> int:
    return sum(prod(one.most) for one in profile.shapes.values()) + sum(
        sum(one.most) for one in profile.values.values()
    )


def _text(profile: Profile) -> str:
    ranges = [f"'{name}' {one}" for name, one in {**profile.shapes, **profile.values}.items()]
    return ", ".join(ranges) or "what the plan states"
