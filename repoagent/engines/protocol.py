"""What the server sees of an engine and of the device under it; nothing of TensorRT or CUDA passes through.

Memory is an address, on the device or on the host. Work is enqueued on a :class:`Stream` and done in the order of that
stream; :class:`Event` orders streams among each other, and lets the host wait. Two implementations exist: CUDA with
TensorRT, and the tests' stand-in over ONNX Runtime. Both raise errors of :mod:`repoagent.errors` only.
"""

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

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


class Stream(Protocol):
    """A queue of work on the device."""

    @property
    def handle(self) -> int: ...

    def wait_for(self, event: "Event") -> None:
        """What is enqueued after this begins when ``event`` has come."""

    def synchronize(self) -> None:
        """Wait until everything enqueued so far is done."""

    def close(self) -> None: ...


class Event(Protocol):
    """A place in a stream."""

    def record(self, stream: Stream) -> None:
        """Come when everything enqueued on ``stream`` so far is done."""

    def wait(self) -> None:
        """Wait on the host until it has come; at once if it was never recorded.

        Raises:
            InternalError: what was enqueued before it failed.
        """

    def close(self) -> None: ...


class Graph(Protocol):
    """Work that was captured once and is launched as a whole."""

    def launch(self, stream: Stream) -> None: ...

    def close(self) -> None: ...


class HostMemory(Protocol):
    """Page-locked memory of the host."""

    @property
    def address(self) -> int: ...

    @property
    def data(self) -> Bytes:
        """All of it."""

    def close(self) -> None: ...


class Device(Protocol):
    """One GPU, or what stands in for it. Its methods may be called from any thread."""

    @property
    def index(self) -> int: ...

    def allocate(self, size: int) -> int:
        """Device memory of ``size`` bytes.

        Raises:
            UnavailableError: there is not enough of it.
        """

    def free(self, address: int) -> None: ...

    def allocate_host(self, size: int) -> HostMemory:
        """Page-locked host memory, aligned for any element."""

    def new_stream(self) -> Stream: ...

    def new_event(self) -> Event: ...

    def copy_in(self, target: int, source: int, size: int, stream: Stream) -> None:
        """Copy from the host to the device. ``source`` is left alone until it is done."""

    def copy_out(self, target: int, source: int, size: int, stream: Stream) -> None:
        """Copy from the device to the host."""

    def copy_within(self, target: int, source: int, size: int, stream: Stream) -> None:
        """Copy from the device to the device."""

    def zero(self, target: int, size: int, stream: Stream) -> None: ...

    def begin_capture(self, stream: Stream) -> None:
        """What is enqueued on ``stream`` from now on is captured and not executed."""

    def end_capture(self, stream: Stream) -> Graph:
        """The end of it.

        Raises:
            UnsupportedError: something in between cannot be captured.
        """

    def close(self) -> None: ...


class GrowingOutput(Protocol):
    """The memory of an output whose shape only the run determines."""

    def reallocate(self, size: int) -> int:
        """An address on the device with at least ``size`` bytes behind it."""

    def notify(self, shape: Shape) -> None:
        """The shape that the output has."""


class Context(Protocol):
    """One execution at a time, on one stream."""

    def use_profile(self, index: int, stream: Stream) -> None:
        """Choose the profile. All shapes must be set again."""

    def set_shape(self, name: str, shape: Shape) -> None:
        """The shape of an input.

        Raises:
            InvalidArgumentError: the profile does not allow it.
        """

    def bind(self, name: str, address: int) -> None:
        """Where an input or output lies: on the device, or on the host for a shape tensor."""

    def grow(self, name: str, output: GrowingOutput) -> None:
        """Where an output lies whose shape only the run determines."""

    def shape_of(self, name: str) -> Shape:
        """The shape that an output will have. A dimension that only the run determines is -1.

        Shapes, and addresses of shape tensors, of all inputs must be set.
        """

    def max_bytes(self, name: str) -> int:
        """An upper bound of the size of an output whose shape only the run determines; 0 if there is none."""

    def enqueue(self, stream: Stream) -> None:
        """Enqueue one execution. Everything that was set may be set again at once for the next one.

        Raises:
            InternalError: the engine refused it.
        """

    def close(self) -> None: ...


class Engine(Protocol):
    """A plan that was opened on a device. Its contexts may run at once."""

    @property
    def name(self) -> str: ...

    @property
    def tensors(self) -> Sequence[TensorSpec]:
        """Inputs and outputs in the order of the plan."""

    @property
    def profiles(self) -> Sequence[Profile]: ...

    @property
    def memory_needed(self) -> int:
        """Bytes of device memory that each context takes for itself."""

    def new_context(self) -> Context: ...

    def close(self) -> None:
        """Let go of the weights; no context is left."""


class Platform(Protocol):
    """Where plans run: the GPUs of this machine with one flavour of TensorRT, or the tests' stand-in."""

    @property
    def title(self) -> str:
        """For logs and messages, such as ``TensorRT for RTX 1.7.1``."""

    @property
    def gpus(self) -> Sequence[int]:
        """The devices that instances may use."""

    def check_plan(self, plan: Any, device: int) -> None:
        """Refuse a plan that cannot run on ``device``, before the library sees it. ``plan`` is a buffer.

        Raises:
            InvalidArgumentError: it is damaged, or not a plan at all.
            UnsupportedError: it was built for something else; the message states for what, and what is here.
        """

    def device(self, index: int) -> Device:
        """The device; one object per index."""

    def open(self, plan: Any, options: EngineOptions) -> Engine:
        """Open a plan, a buffer that passed :meth:`check_plan`.

        Raises:
            InternalError: the library refused it; the message is its first error.
        """
