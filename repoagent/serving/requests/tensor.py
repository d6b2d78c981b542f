"""Tensors as they travel through the core: a data type, and a NumPy array that carries shape and memory."""

import enum
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NewType

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

__all__ = [
    "NUMPY_TYPES",
    "Array",
    "DataType",
    "ModelName",
    "ServerEnum",
    "Tensor",
    "data_type_of",
    "input_bytes",
    "model_metadata",
]


def _tensor(item: Any, batching: bool) -> dict[str, Any]:
    shape = list(item.dims)
    if batching and not item.is_shape_tensor:
        shape.insert(0, -1)
    return {"name": item.name, "datatype": DataType(item.data_type).name, "shape": shape}


def model_metadata(name: str, config: "ModelConfig", versions: Iterable[int]) -> dict[str, Any]:
    """The body of ``GET v2/models/NAME``: ``versions`` are those that are ready."""
    batching = config.max_batch_size > 0
    return {
        "name": name,
        "versions": [str(version) for version in sorted(versions)],
        "platform": config.platform or config.backend,
        "inputs": [_tensor(item, batching) for item in config.input],
        "outputs": [_tensor(item, batching) for item in config.output],
    }


Array = npt.NDArray[Any]
ModelName = NewType("ModelName", str)


class ServerEnum(enum.Enum):
    """What the enumerations have in common that Triton has too; they print under their names in its C interface.

    Members are not integers: ``DataType.INT8 == 6`` is false, and members of two enumerations are never equal.
    ``int(member)`` gives the number.
    """

    def __int__(self) -> int:
        value: int = self.value
        return value

    __index__ = __int__
    # Each member is there once. The hash that Enum has is computed from the name, in Python.
    __hash__ = object.__hash__

    def __str__(self) -> str:
        return f"TRITONSERVER_{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {self.value}>"


class DataType(ServerEnum):
    """Data types of the KServe v2 protocol; numbers as in ``TRITONSERVER_DataType``."""

    INVALID = 0
    BOOL = 1
    UINT8 = 2
    UINT16 = 3
    UINT32 = 4
    UINT64 = 5
    INT8 = 6
    INT16 = 7
    INT32 = 8
    INT64 = 9
    FP16 = 10
    FP32 = 11
    FP64 = 12
    BYTES = 13
    BF16 = 14


#: How each type lies in memory. BYTES elements are ``bytes`` objects; BF16 has no NumPy type and is kept as its bits.
NUMPY_TYPES: Final[dict[DataType, np.dtype[Any]]] = {
    DataType.BOOL: np.dtype(np.bool_),
    DataType.UINT8: np.dtype(np.uint8),
    DataType.UINT16: np.dtype(np.uint16),
    DataType.UINT32: np.dtype(np.uint32),
    DataType.UINT64: np.dtype(np.uint64),
    DataType.INT8: np.dtype(np.int8),
    DataType.INT16: np.dtype(np.int16),
    DataType.INT32: np.dtype(np.int32),
    DataType.INT64: np.dtype(np.int64),
    DataType.FP16: np.dtype(np.float16),
    DataType.FP32: np.dtype(np.float32),
    DataType.FP64: np.dtype(np.float64),
    DataType.BYTES: np.dtype(np.object_),
    DataType.BF16: np.dtype(np.uint16),
}

_FROM_NUMPY: Final = {dtype: kind for kind, dtype in NUMPY_TYPES.items() if kind is not DataType.BF16}


def data_type_of(array: Array) -> DataType:
    """The data type of ``array``; text and object arrays are BYTES, a type with no counterpart is INVALID."""
    known = _FROM_NUMPY.get(array.dtype)
    if known is not None:
        return known
    return DataType.BYTES if array.dtype.kind in "SU" else DataType.INVALID


@dataclass(slots=True)
class Tensor:
    """One input or output: the protocol's data type, and the values as an array of the tensor's shape."""

    data_type: DataType
    array: Array

    @property
    def shape(self) -> Sequence[int]:
        return self.array.shape

    @classmethod
    def of(cls, values: Any) -> "Tensor":
        """Wrap anything NumPy understands."""
        array = np.asarray(values)
        return cls(data_type_of(array), array)


_FEW: Final = 1024
_MANY_BYTES: Final = 1 << 62


def input_bytes(inputs: Mapping[str, Tensor]) -> int:
    """How many bytes the values of ``inputs`` are; of more BYTES than can be counted quickly, any number."""
    size = 0
    for tensor in inputs.values():
        array = tensor.array
        if not array.dtype.hasobject:
            size += array.nbytes
        elif array.size <= _FEW:
            size += sum(len(value) if isinstance(value, bytes | str) else _MANY_BYTES for value in array.flat)
        else:
            return _MANY_BYTES
    return size
