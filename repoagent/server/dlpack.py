"""DLPack's C structures, and the numbers in them (dlpack.h, the unversioned capsule ``dltensor``)."""

# ruff: noqa: N815 - the names of members are DLPack's, and part of the interface

import ctypes
import enum
from typing import Any, Final

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
