"""The type of a tensor in a DLPack capsule: NumPy knows no bfloat16, but it can hold and give its bits."""

import ctypes
from typing import Any, Final

__all__ = ["BFLOAT16", "BITS", "exchange_type"]

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
