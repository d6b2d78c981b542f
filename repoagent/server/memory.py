"""The memory of a tensor, and the ways to name a device."""

import math
from typing import Any, Final, TypeAlias

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.server.datatypes import (
    Array,
    DLDeviceType,
    DLTensor,
    dl_device_to_memory_type,
    dl_type_to_type,
    managed_tensor,
    numpy_to_type,
)
from repoagent.server.enums import MemoryType
from repoagent.serving.requests.tensor import DataType

DeviceOrMemoryType: TypeAlias = str | MemoryType | tuple[MemoryType, int] | tuple[DLDeviceType, int]

_NAMES: Final = frozenset(MemoryType.__members__)


class MemoryBuffer:
    """A piece of memory and the object that keeps it alive. ``size`` is in bytes."""

    __slots__ = ("__weakref__", "_address", "_lease", "memory_type", "memory_type_id", "owner", "size")

    def __init__(
        self,
        data_ptr: int | None,
        memory_type: MemoryType,
        memory_type_id: int,
        size: int,
        owner: Any,
        *,
        lease: Any = None,
    ) -> None:
        """``data_ptr`` None is for an owner that is a NumPy array: where that lies is only found out when asked for,
        which for a small tensor is much of the work. ``lease`` is a second object to keep."""
        self._address = data_ptr
        self.memory_type = memory_type
        self.memory_type_id = memory_type_id
        self.size = size
        self.owner = owner
        self._lease = lease

    def __repr__(self) -> str:
        return (
            f"MemoryBuffer(data_ptr={self.data_ptr}, memory_type={self.memory_type!r}, "
            f"memory_type_id={self.memory_type_id}, size={self.size}, owner={self.owner!r})"
        )

    @property
    def data_ptr(self) -> int:
        """The address of the first byte."""
        if self._address is None:
            self._address = address_of(self.owner)
        return self._address

    @data_ptr.setter
    def data_ptr(self, address: int) -> None:
        self._address = address

    @staticmethod
    def from_dlpack(owner: Any) -> "MemoryBuffer":
        """The memory of any object with ``__dlpack__``, not copied.

        Raises:
            InvalidArgumentError: the object has no such method, or its memory is not contiguous or not the CPU's.
        """
        return import_dlpack(owner)[2]


class _View:
    """What NumPy makes an array of. It becomes the base of that array, and so keeps ``owners`` alive."""

    __slots__ = ("__array_interface__", "_owners")

    def __init__(self, interface: dict[str, Any], owners: object) -> None:
        self.__array_interface__ = interface
        self._owners = owners


def view(address: int, shape: tuple[int, ...], dtype: "np.dtype[Any]", owners: object) -> Array:
    """A writable array over memory at ``address`` that keeps ``owners`` alive; nothing is read or copied."""
    if not address:
        return np.empty(shape, dtype)
    interface = {"data": (address, False), "shape": shape, "typestr": dtype.str, "version": 3}
    return np.asarray(_View(interface, owners))


def address_of(array: Array) -> int:
    """Where the first element of ``array`` lies."""
    address: int = array.__array_interface__["data"][0]
    return address


def import_dlpack(source: Any) -> tuple[DataType, tuple[int, ...], MemoryBuffer]:
    """The data type, the shape and the memory of an object with ``__dlpack__``. It gets one reference more.

    Raises:
        InvalidArgumentError: the object has no such method, or its memory is not contiguous or not the CPU's.
    """
    if type(source) is np.ndarray and source.dtype.kind in "biuf" and source.dtype.isnative:
        return _import_array(source)
    if not hasattr(source, "__dlpack__") or not hasattr(source, "__dlpack_device__"):
        raise InvalidArgumentError("Object does not support DLpack protocol")
    device, device_id = source.__dlpack_device__()
    memory_type = dl_device_to_memory_type(device)
    if memory_type is MemoryType.GPU:
        raise InvalidArgumentError(
            f"Object does not support DLPack protocol: it lies in the memory of GPU {device_id}; move it to the CPU"
        )
    return _import_capsule(source, _capsule(source), memory_type, device_id)


def _capsule(source: Any) -> Any:
    try:
        return source.__dlpack__()
    except BufferError as error:
        raise InvalidArgumentError(f"Object does not support DLpack protocol: {error}") from error


def _import_capsule(
    source: Any, capsule: Any, memory_type: MemoryType, device_id: int
) -> tuple[DataType, tuple[int, ...], MemoryBuffer]:
    tensor: DLTensor = managed_tensor(capsule).dl_tensor
    shape = tuple(tensor.shape[: tensor.ndim])
    if tensor.dtype.lanes != 1:
        raise InvalidArgumentError(f"DLPack type with {tensor.dtype.lanes} lanes not supported: it must have one")
    data_type = dl_type_to_type(tensor.dtype.code, tensor.dtype.bits)
    if not _contiguous(tensor, shape):
        raise InvalidArgumentError("Only contiguous memory is supported")
    size = math.prod(shape) * tensor.dtype.bits // 8
    address = (tensor.data or 0) + tensor.byte_offset
    # The capsule may hold memory that the source itself does not (the protocol allows copies): keep it as well.
    return data_type, shape, MemoryBuffer(address, memory_type, device_id, size, source, lease=capsule)


def _import_array(array: Array) -> tuple[DataType, tuple[int, ...], MemoryBuffer]:
    if not array.flags.c_contiguous:
        raise InvalidArgumentError("Only contiguous memory is supported")
    buffer = MemoryBuffer(None, MemoryType.CPU, 0, array.nbytes, array)
    return numpy_to_type(array.dtype), array.shape, buffer


def _contiguous(tensor: DLTensor, shape: tuple[int, ...]) -> bool:
    if not tensor.strides:
        return True
    expected = 1
    for dim, stride in zip(reversed(shape), reversed(tensor.strides[: tensor.ndim]), strict=True):
        if dim != 1 and stride != expected:
            return math.prod(shape) == 0
        expected *= dim
    return True


def parse_device(device: DeviceOrMemoryType) -> tuple[MemoryType, int]:
    """The kind of memory and the number that ``device`` names: ``"gpu:0"``, a member, or a pair.

    Raises:
        InvalidArgumentError: it names none.
    """
    if isinstance(device, MemoryType):
        return device, 0
    if isinstance(device, str):
        return _parse_text(device)
    match device:
        case (MemoryType() as kind, int() as number):
            return kind, number
        case (int() as dl_device, int() as number):
            return dl_device_to_memory_type(dl_device), number
    raise InvalidArgumentError(f"Invalid memory type {device}")


def _parse_text(text: str) -> tuple[MemoryType, int]:
    name, *rest = text.split(":")
    if len(rest) > 1 or (rest and not rest[0].strip().isdecimal()):
        raise InvalidArgumentError(f"Invalid memory type string {text}")
    name = name.strip().upper()
    if name not in _NAMES:
        raise InvalidArgumentError(f"Unsupported Memory Type String. Can't convert {name} to Triton server memory type")
    return MemoryType[name], int(rest[0]) if rest else 0
