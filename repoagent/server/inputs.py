"""What may be given as an input of a request, and how it becomes a tensor of the serving core.

Contiguous and aligned memory of the CPU is used as it is if the core has its type, also if it is read-only. What is
made of it keeps its owner alive.
"""

from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.server.bytes_tensors import as_bytes_array
from repoagent.server.datatypes import Array, numpy_to_type
from repoagent.server.tensor import Tensor, to_core
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType
from repoagent.serving.requests.tensor import Tensor as CoreTensor

__all__ = ["core_input"]

#: The types whose arrays go to the core as they are.
_DIRECT: Final = {dtype: kind for kind, dtype in NUMPY_TYPES.items() if kind not in (DataType.BYTES, DataType.BF16)}
_ACCEPTED: Final = [Tensor, np.ndarray, np.generic, list]


def core_input(value: Any) -> CoreTensor:
    """The value of an input as a tensor of the core; arrays of numbers are not copied.

    Raises:
        InvalidArgumentError: it cannot be an input, or has a type that models do not have.
    """
    if type(value) is np.ndarray:
        kind = _DIRECT.get(value.dtype)
        # Here instead of in the function below, as this is on the way of every request.
        return CoreTensor(kind, value) if kind is not None and value.flags.carray else _from_array(value)
    if isinstance(value, Tensor):
        return to_core(value)
    if isinstance(value, np.ndarray | np.generic | list):
        return _from_array(np.array(value) if isinstance(value, list) else np.asarray(value))
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(value)
    raise InvalidArgumentError(
        f"Input type {type(value)} not supported. Must be one of {_ACCEPTED} or the type must support __dlpack__"
    )


def _from_array(array: Array) -> CoreTensor:
    kind = _DIRECT.get(array.dtype)
    if kind is None:
        return _from_unusual_array(array)
    return CoreTensor(kind, np.require(array, requirements=("C", "A")))


def _from_dlpack(value: Any) -> CoreTensor:
    try:
        return to_core(Tensor.from_dlpack(value))
    except InvalidArgumentError:
        # What a tensor refuses an input may be: with gaps, or memory that can only be read, as NumPy understands it.
        try:
            array = np.from_dlpack(value)
        except Exception:
            array = None
        if array is None:
            raise
        return _from_array(array)


def _from_unusual_array(array: Array) -> CoreTensor:
    kind = numpy_to_type(array.dtype)
    if kind is DataType.BYTES:
        return CoreTensor(kind, as_bytes_array(array))
    # A known type in the byte order of another machine.
    return CoreTensor(kind, np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("=")))
