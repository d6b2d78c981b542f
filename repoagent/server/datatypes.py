"""What the data types of tensors and the kinds of memory are called in Triton, NumPy and DLPack."""

# ruff: noqa: N815 - the names of members are DLPack's, and part of the interface

import ctypes
import enum
import struct
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, TypeVar

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.server.enums import MemoryType
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType

_NAME: Final = b"dltensor"
_capsule_pointer: Final = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)


class DLDeviceType(enum.IntEnum):
    """DLPack's devices."""

    kDLCPU = 1
    kDLCUDA = 2
    kDLCUDAHost = 3
    kDLOpenCL = 4
    kDLVulkan = 7
    kDLMetal = 8
    kDLVPI = 9
    kDLROCM = 10
    kDLROCMHost = 11
    kDLExtDev = 12
    kDLCUDAManaged = 13
    kDLOneAPI = 14
    kDLWebGPU = 15
    kDLHexagon = 16


class DLDataTypeCode(enum.IntEnum):
    """DLPack's kinds of elements."""

    kDLInt = 0
    kDLUInt = 1
    kDLFloat = 2
    kDLOpaquePointer = 3
    kDLBfloat = 4
    kDLComplex = 5
    kDLBool = 6


class DLDevice(ctypes.Structure):
    """Where a tensor lies."""

    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class DLDataType(ctypes.Structure):
    """What its elements are."""

    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class DLTensor(ctypes.Structure):
    """A tensor; ``strides`` counts elements and may be NULL for a compact row-major one."""

    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", DLDevice),
        ("ndim", ctypes.c_int32),
        ("dtype", DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class DLManagedTensor(ctypes.Structure):
    """A tensor and how to let go of it."""

    _fields_ = [("dl_tensor", DLTensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


def managed_tensor(capsule: Any) -> DLManagedTensor:
    """The structure in an unused ``dltensor`` capsule; it is valid as long as the capsule.

    Raises:
        ValueError: it is another capsule, or used up.
    """
    address = _capsule_pointer(capsule, _NAME)
    return DLManagedTensor.from_address(address)


Array = np.ndarray[Any, np.dtype[Any]]
Key = TypeVar("Key")
Value = TypeVar("Value")

_FROM_NUMPY: Final = MappingProxyType(
    {dtype.type: kind for kind, dtype in NUMPY_TYPES.items() if kind is not DataType.BF16}
    | {np.bytes_: DataType.BYTES, np.str_: DataType.BYTES}
)
_DL_CODES: Final = MappingProxyType(
    {
        "b": DLDataTypeCode.kDLBool,
        "u": DLDataTypeCode.kDLUInt,
        "i": DLDataTypeCode.kDLInt,
        "f": DLDataTypeCode.kDLFloat,
    }
)
_TO_DL: Final = MappingProxyType(
    {
        kind: (_DL_CODES[dtype.kind], dtype.itemsize * 8)
        for kind, dtype in NUMPY_TYPES.items()
        if dtype.kind in _DL_CODES
    }
    | {DataType.BF16: (DLDataTypeCode.kDLBfloat, 16)}
)
_FROM_DL: Final = MappingProxyType({(int(code), bits): kind for kind, (code, bits) in _TO_DL.items()})
_DEVICES: Final = MappingProxyType(
    {
        MemoryType.CPU: DLDeviceType.kDLCPU,
        MemoryType.CPU_PINNED: DLDeviceType.kDLCUDAHost,
        MemoryType.GPU: DLDeviceType.kDLCUDA,
    }
)
_FROM_DEVICE: Final[Mapping[int, MemoryType]] = MappingProxyType({device: kind for kind, device in _DEVICES.items()})


def lookup(table: Mapping[Key, Value], key: Key, source: str, target: str) -> Value:
    """``table[key]``.

    Raises:
        InvalidArgumentError: it is not in there; ``source`` and ``target`` name what was to be converted into what.
    """
    try:
        return table[key]
    except KeyError:
        raise InvalidArgumentError(f"Unsupported {source}. Can't convert {key} to {target}") from None


def numpy_to_type(dtype: "np.dtype[Any] | type") -> DataType:
    """The data type of arrays of ``dtype``; text, bytes and objects are BYTES."""
    kind = np.dtype(dtype).type
    return lookup(_FROM_NUMPY, kind, "Numpy data type", "Triton server data type")


def type_to_numpy(data_type: DataType) -> "np.dtype[Any]":
    """The NumPy type that holds ``data_type``; BF16 has none."""
    table: Mapping[DataType, Any] = {kind: dtype for kind, dtype in NUMPY_TYPES.items() if kind is not DataType.BF16}
    dtype: np.dtype[Any] = lookup(table, data_type, "Triton data type", "Numpy data type")
    return dtype


def dl_type_to_type(code: int, bits: int) -> DataType:
    """The data type of a DLPack type with one lane."""
    return lookup(_FROM_DL, (code, bits), "DLPack data type", "Triton server data type")


def type_to_dl_type(data_type: DataType) -> tuple[DLDataTypeCode, int]:
    """The DLPack type code and the number of bits of ``data_type``; BYTES has none."""
    return lookup(_TO_DL, data_type, "Triton server data type", "DLPack data type")


def dl_device_to_memory_type(device: int) -> MemoryType:
    """The kind of memory of a DLPack device."""
    return lookup(_FROM_DEVICE, device, "DLPack device type", "Triton server memory type")


def memory_type_to_dl_device(memory_type: MemoryType) -> DLDeviceType:
    """The DLPack device of a kind of memory."""
    return lookup(_DEVICES, memory_type, "Triton server memory type", "DLPack device type")


_LENGTH: Final = struct.Struct("<I")


def as_bytes_array(array: Array) -> Array:
    """An object array of ``bytes`` in the shape of ``array``; text is encoded as UTF-8."""
    result: Array = np.empty(array.shape, dtype=object)
    result.reshape(-1)[:] = [_encode(element) for element in array.reshape(-1).tolist()]
    return result


def _encode(element: Any) -> bytes:
    if isinstance(element, bytes):
        return element
    if isinstance(element, str):
        return element.encode("utf-8")
    return bytes(element) if isinstance(element, bytearray | memoryview) else str(element).encode("utf-8")


def serialize(elements: Iterable[bytes]) -> bytes:
    """The memory of a BYTES tensor with these elements."""
    pack = _LENGTH.pack
    return b"".join([part for element in elements for part in (pack(len(element)), element)])


def deserialize(memory: "memoryview[int] | bytes", shape: Iterable[int]) -> Array:
    """The elements in ``memory``, as an object array of ``shape``.

    Raises:
        InvalidArgumentError: the memory does not hold exactly the elements that the shape asks for.
    """
    elements = []
    place = 0
    while place + 4 <= len(memory):
        (length,) = _LENGTH.unpack_from(memory, place)
        end = place + 4 + length
        if end > len(memory):
            break
        elements.append(bytes(memory[place + 4 : end]))
        place = end
    result: Array = np.empty(tuple(shape), dtype=object)
    if place != len(memory) or len(elements) != result.size:
        raise InvalidArgumentError(
            f"BYTES tensor of shape {list(result.shape)} needs {result.size} elements, each a 4-byte length and its "
            f"bytes; its memory of {len(memory)} bytes holds {len(elements)}, and {len(memory) - place} bytes are left"
        )
    result.reshape(-1)[:] = elements
    return result
