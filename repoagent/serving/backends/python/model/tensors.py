"""Tensors and data types as a ``model.py`` sees them through ``triton_python_backend_utils``."""

import ctypes
import struct
from typing import Any, Final

import numpy as np

from repoagent.serving.backends.python.model.context import TritonModelException, raising_tritons
from repoagent.serving.requests.tensor import (
    BY_CONFIG_NAME,
    NUMPY_TYPES,
    Array,
    DataType,
    data_type_of,
    parse_bytes_tensor,
)
from repoagent.serving.requests.tensor import Tensor as CoreTensor

BFLOAT16: Final = (4, 16, 1)
"""DLPack's code, bits and lanes of bfloat16."""
BITS: Final = (1, 16, 1)
"""The same of uint16."""

_TYPE_OFFSET: Final = 20
"""Where the type stands in a DLTensor: after the address, the device and the number of dimensions."""
_HEADER_OFFSETS: Final = {b"dltensor": 0, b"dltensor_versioned": 32}
"""Where the DLTensor stands in what a capsule of that name holds."""

_pointer_of: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_is_valid: Final = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_IsValid", ctypes.pythonapi)
)


class _Type(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


def exchange_type(capsule: Any, old: tuple[int, int, int], new: tuple[int, int, int]) -> bool:
    """Write ``new`` into an unused capsule whose elements have the type ``old``; False if they have another one."""
    for name, header in _HEADER_OFFSETS.items():
        if _is_valid(capsule, name):
            found = _Type.from_address(_pointer_of(capsule, name) + header + _TYPE_OFFSET)
            if (found.code, found.bits, found.lanes) != old:
                return False
            found.code, found.bits, found.lanes = new
            return True
    return False


_LENGTH: Final = struct.Struct("<I")
_CPU: Final = (1, 0)
_VERSIONED: Final = np.lib.NumpyVersion(np.__version__) >= "2.1.0"
"""NumPy knows DLPack 1.0."""
_TEXTS: Final = frozenset({str, bytes})


class Tensor:
    """A named array. Outputs are made with ``Tensor(name, array)``; inputs come from the request."""

    __slots__ = ("_core", "_name", "_shared")

    def __init__(self, name: str, numpy_array: Array) -> None:
        if not isinstance(name, str):
            raise TypeError(f"the name of a Tensor must be a str, not {type(name).__name__}")
        if not isinstance(numpy_array, np.ndarray):
            raise TypeError(f"numpy_array of tensor '{name}' must be a NumPy array, not {type(numpy_array).__name__}")
        array = numpy_array
        if array.dtype.kind in "UV":
            raise TritonModelException(
                f"Tensor dtype used for numpy_array is not supported by Python backend: {array.dtype}. "
                "Please use np.object_ instead."
            )
        kind = data_type_of(array)
        if kind is DataType.INVALID:
            raise TritonModelException(f"Tensor '{name}' has dtype {array.dtype}, which no data type stands for")
        if array.dtype == np.object_:
            array = _texts(array)
        self._name = name
        self._core = CoreTensor(kind, array)
        self._shared = False

    @classmethod
    def wrap(cls, name: str, core: CoreTensor, *, shared: bool = False) -> "Tensor":
        """The core's tensor under ``name``, not copied; one that is ``shared`` with others can only be read."""
        tensor = cls.__new__(cls)
        tensor._name = name
        tensor._core = core
        tensor._shared = shared
        return tensor

    def unwrap(self) -> CoreTensor:
        """The core's form of this tensor, not copied."""
        return self._core

    def name(self) -> str:
        return self._name

    def as_numpy(self) -> Array:
        """The values. BYTES elements are ``bytes``.

        Raises:
            TritonModelException: NumPy has no type for it: BF16, which goes to other libraries by DLPack.
        """
        if self._core.data_type is DataType.BF16:
            raise TritonModelException(
                "tensor dtype is bf16 and cannot be converted to numpy. Use DLPack instead: "
                "torch.utils.dlpack.from_dlpack(tensor.to_dlpack())"
            )
        array = self._core.array
        if self._shared and array.flags.writeable:
            array = array.view()
            array.flags.writeable = False
        return array

    def triton_dtype(self) -> int:
        return int(self._core.data_type)

    def shape(self) -> list[int]:
        return list(self._core.array.shape)

    def is_cpu(self) -> bool:
        """Always True here: tensors of this backend live in host memory."""
        return True

    def to_dlpack(self) -> Any:
        """A DLPack capsule, without a version; see :meth:`__dlpack__`."""
        return self.__dlpack__()

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """The same memory wherever that is possible; a copy of what can only be read for who knows no DLPack 1.0.

        Raises:
            BufferError: it would have to be a copy, and ``copy`` is False.
        """
        array = np.require(self._core.array, requirements=("C", "A"))
        only_read = self._shared or not array.flags.writeable
        # Before 1.0 DLPack could not state that memory must not be written to.
        versioned = _VERSIONED and max_version is not None and max_version[0] >= 1
        if copy or (only_read and not versioned):
            array = array.copy()
        elif only_read:
            array = array.view()
            array.flags.writeable = False
        if copy is False and not np.shares_memory(array, self._core.array):
            raise BufferError(f"tensor '{self._name}' can only be given as a copy")
        capsule = array.__dlpack__(max_version=max_version) if versioned else array.__dlpack__()
        if self._core.data_type is DataType.BF16:
            exchange_type(capsule, BITS, BFLOAT16)
        return capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU

    @staticmethod
    def from_dlpack(name: str, tensor: Any) -> "Tensor":
        """A tensor over the memory of anything with the DLPack protocol (or one of its capsules).

        Raises:
            TritonModelException: it is neither, or its memory cannot be used.
        """
        protocol = hasattr(tensor, "__dlpack__") and hasattr(tensor, "__dlpack_device__")
        if not (protocol or type(tensor).__name__ == "PyCapsule"):
            raise TritonModelException(
                "Provided tensor is not supported. Tensor must be a DLPack capsule or have `__dlpack__` and "
                "`__dlpack_device__` attributes."
            )
        try:
            return Tensor(name, np.from_dlpack(tensor if protocol else _Capsule(tensor)))
        except (BufferError, RuntimeError, ValueError) as error:
            source = _Capsule(tensor.__dlpack__() if protocol else tensor)
            if not exchange_type(source.capsule, BFLOAT16, BITS):
                raise TritonModelException(f"tensor '{name}' cannot be taken from DLPack: {error}") from error
        return Tensor.wrap(name, CoreTensor(DataType.BF16, np.from_dlpack(source)))


def _texts(array: Array) -> Array:
    """``array``, with texts in place of elements that are neither text nor bytes."""
    elements = array.ravel().tolist()
    if {*map(type, elements)} <= _TEXTS:
        return array
    made = np.empty(array.size, np.object_)
    made[:] = [element if isinstance(element, str | bytes) else str(element) for element in elements]
    return made.reshape(array.shape)


class _Capsule:
    """Gives a bare capsule the methods that NumPy wants."""

    def __init__(self, capsule: Any) -> None:
        self.capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return _CPU


TRITON_STRING_TO_NUMPY: Final = {
    kind.config_name: bool if kind is DataType.BOOL else dtype.type
    for kind, dtype in NUMPY_TYPES.items()
    if kind is not DataType.BF16
}
"""The NumPy types by the names of the model configuration, as far as there are any."""

_NUMPY_BY_NUMBER: Final = {int(kind): dtype.type for kind, dtype in NUMPY_TYPES.items()}


def triton_to_numpy_type(data_type: int) -> Any:
    """The NumPy type of a data type's number, or None."""
    return _NUMPY_BY_NUMBER.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of the data type of a NumPy type, or None."""
    kind = data_type_of(np.empty(0, data_type))
    return None if kind is DataType.INVALID else int(kind)


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The NumPy type of a name from the model configuration, such as ``"TYPE_FP32"``.

    Raises:
        KeyError: no such data type.
    """
    return NUMPY_TYPES[BY_CONFIG_NAME[triton_type_string]].type


def serialize_byte_tensor(input_tensor: Array) -> bytes | None:
    """Each element as a 4-byte little-endian length and its bytes, in C order; None for an empty tensor."""
    if input_tensor.size == 0:
        return None
    parts = []
    for value in input_tensor.ravel(order="C"):
        data = value if isinstance(value, bytes) else str(value).encode()
        parts += [_LENGTH.pack(len(data)), data]
    return b"".join(parts)


@raising_tritons
def deserialize_bytes_tensor(encoded_tensor: bytes) -> Array:
    """The inverse of :func:`serialize_byte_tensor`, as a flat array of ``bytes``; ``TritonModelException`` if the
    lengths do not add up."""
    return parse_bytes_tensor(bytes(memoryview(encoded_tensor)))  # It may be any buffer.
