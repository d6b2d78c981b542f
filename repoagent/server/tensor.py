"""Tensors of the Server API: a data type, a shape, and memory with an owner. Nothing is copied unless necessary."""

import math
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError, UnsupportedError
from repoagent.server.datatypes import (
    Array,
    DLDeviceType,
    as_bytes_array,
    deserialize,
    managed_tensor,
    memory_type_to_dl_device,
    serialize,
    type_to_dl_type,
    type_to_numpy,
)
from repoagent.server.enums import MemoryType
from repoagent.server.memory import DeviceOrMemoryType, MemoryBuffer, import_dlpack, parse_device, view
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType
from repoagent.serving.requests.tensor import Tensor as CoreTensor

_BYTE: Final = np.dtype(np.uint8)
# To look a member up in its class takes as long as to make a small object.
_BYTES: Final = DataType.BYTES
_CPU: Final = MemoryType.CPU


@dataclass(slots=True, eq=False, weakref_slot=True)
class Tensor:
    """An input or output of a model.

    ``numpy.from_dlpack(tensor)``, ``numpy.asarray(tensor)`` and everything else that takes DLPack see the tensor's own
    memory, which stays as long as any of them lives. BYTES tensors hold their elements serialised; see
    :meth:`to_bytes_array` and :meth:`to_string_array`.
    """

    data_type: DataType
    shape: tuple[int, ...]
    memory_buffer: MemoryBuffer

    @property
    def data_ptr(self) -> int:
        """The address of the first byte."""
        return self.memory_buffer.data_ptr

    @property
    def memory_type(self) -> MemoryType:
        """The kind of memory."""
        return self.memory_buffer.memory_type

    @property
    def memory_type_id(self) -> int:
        """The number of the device."""
        return self.memory_buffer.memory_type_id

    @property
    def size(self) -> int:
        """The number of bytes."""
        return self.memory_buffer.size

    # -- from and to other libraries ------------------------------------------------------------------------------

    @staticmethod
    def from_dlpack(obj: Any) -> "Tensor":
        """The tensor that ``obj`` is, over the same memory; ``obj`` is kept and gets one reference more.

        Raises:
            InvalidArgumentError: ``obj`` does not support DLPack, is not contiguous, has another data type, or lies on
                a GPU.
        """
        if isinstance(obj, Tensor):
            buffer = obj.memory_buffer
            shared = MemoryBuffer(buffer.data_ptr, buffer.memory_type, buffer.memory_type_id, buffer.size, obj)
            return Tensor(obj.data_type, obj.shape, shared)
        data_type, shape, buffer = import_dlpack(obj)
        return Tensor(data_type, shape, buffer)

    def __dlpack__(self, *, stream: Any = None) -> Any:
        if self.memory_type is MemoryType.GPU or stream not in (None, 0):
            raise UnsupportedError(
                f"DLPack stream synchronization on memory type {self.memory_type} and stream {stream} not supported"
            )
        code, bits = type_to_dl_type(self.data_type)
        # NumPy makes the capsule; it counts references and frees it from any thread, with and without the GIL.
        capsule = self._view().__dlpack__()
        exported = managed_tensor(capsule).dl_tensor
        exported.dtype.code, exported.dtype.bits = code, bits
        exported.device.device_type, exported.device.device_id = self.__dlpack_device__()
        return capsule

    def __dlpack_device__(self) -> tuple[DLDeviceType, int]:
        return memory_type_to_dl_device(self.memory_type), self.memory_type_id

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        array = self.to_numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def to_numpy(self) -> Array:
        """An array over the tensor's memory; for BYTES, a new object array of ``bytes``.

        Raises:
            InvalidArgumentError: the tensor is BF16, which NumPy does not have.
            UnsupportedError: it lies on a GPU.
        """
        if self.data_type is DataType.BYTES:
            return self.to_bytes_array()
        type_to_numpy(self.data_type)
        self.to_host()
        return self._view()

    def _view(self) -> Array:
        """The memory as an array: in the NumPy type of equal size, serialised for BYTES."""
        owners = (self, self.memory_buffer)
        if self.data_type is DataType.BYTES:
            return view(self.data_ptr, (self.size,), _BYTE, owners)
        shape = tuple(self.shape)
        dtype = NUMPY_TYPES[self.data_type]
        needed = math.prod(shape) * dtype.itemsize
        if needed > self.size:
            raise InvalidArgumentError(
                f"a tensor of shape {list(shape)} and type {self.data_type.name} needs {needed} bytes, but its memory "
                f"buffer has {self.size}"
            )
        return view(self.data_ptr, shape, dtype, owners)

    # -- text -----------------------------------------------------------------------------------------------------

    @staticmethod
    def from_bytes_array(array: Any) -> "Tensor":
        """A BYTES tensor with the elements and the shape of ``array``; its elements are ``bytes`` (or text)."""
        elements = as_bytes_array(np.asarray(array))
        return _bytes_tensor(elements)

    @staticmethod
    def from_string_array(array: Any) -> "Tensor":
        """A BYTES tensor with the elements and the shape of ``array``; text is encoded as UTF-8."""
        return Tensor.from_bytes_array(array)

    def to_bytes_array(self) -> Array:
        """The elements as an object array of ``bytes``.

        Raises:
            InvalidArgumentError: the tensor is not BYTES, or its memory does not fit its shape.
        """
        if self.data_type is not DataType.BYTES:
            raise InvalidArgumentError(f"Tensor has data type {self.data_type} not {DataType.BYTES}")
        return deserialize(self.to_host()._view().tobytes(), self.shape)

    def to_string_array(self) -> Array:
        """The elements as an object array of ``str``, decoded from UTF-8.

        Raises:
            InvalidArgumentError: the tensor is not BYTES, or an element is not UTF-8.
        """
        array = self.to_bytes_array()
        flat = array.reshape(-1)
        try:
            flat[:] = [element.decode("utf-8") for element in flat]
        except UnicodeDecodeError as error:
            raise InvalidArgumentError(f"Tensor has an element that is not UTF-8 text: {error}") from error
        return array

    # -- devices --------------------------------------------------------------------------------------------------

    def to_host(self) -> "Tensor":
        """The tensor in memory that the CPU reads: itself, unless it lies on a GPU."""
        return self.to_device(MemoryType.CPU)

    def to_device(self, device: DeviceOrMemoryType) -> "Tensor":
        """The tensor in memory of ``device``: ``"cpu"``, ``"gpu:0"``, a MemoryType, or a pair with a number.

        Raises:
            InvalidArgumentError: ``device`` names none.
            UnsupportedError: it would have to be copied between a CPU and a GPU.
        """
        memory_type, number = parse_device(device)
        present = (self.memory_type, self.memory_type_id)
        on_host = memory_type is MemoryType.CPU and self.memory_type is not MemoryType.GPU
        if on_host or present == (memory_type, number):
            return self
        raise UnsupportedError(f"Conversion from {present} to {(memory_type, number)} not supported.")


def _bytes_tensor(elements: Array) -> Tensor:
    memory = np.frombuffer(serialize(elements.reshape(-1).tolist()), dtype=_BYTE)
    buffer = MemoryBuffer(None, MemoryType.CPU, 0, memory.nbytes, memory)
    return Tensor(DataType.BYTES, elements.shape, buffer)


def from_core(tensor: CoreTensor) -> Tensor:
    """The tensor of the serving core as one of the Server API, over the same memory except for BYTES."""
    array = tensor.array
    if tensor.data_type is _BYTES:
        return _bytes_tensor(as_bytes_array(array))
    if not array.flags.c_contiguous:
        array = np.ascontiguousarray(array)
    buffer = MemoryBuffer(None, _CPU, 0, array.nbytes, array)
    return Tensor(tensor.data_type, array.shape, buffer)


def to_core(tensor: Tensor) -> CoreTensor:
    """The tensor as the serving core takes it, over the same memory except for BYTES.

    Raises:
        InvalidArgumentError: its memory does not fit its shape and type.
        UnsupportedError: it lies on a GPU.
    """
    host = tensor.to_host()
    if host.data_type is DataType.BYTES:
        return CoreTensor(host.data_type, host.to_bytes_array())
    if host.data_type not in NUMPY_TYPES:
        raise InvalidArgumentError(f"a tensor of type {host.data_type.name} cannot be an input")
    array = host._view()
    return CoreTensor(host.data_type, array if array.flags.aligned else array.copy())
