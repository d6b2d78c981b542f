"""Tensors as they travel through the core: a data type, and a NumPy array that carries shape and memory.

Also tensors from a model's files, and the ``reshape`` of inputs and outputs.
"""

import enum
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NewType

import numpy as np
import numpy.typing as npt

from repoagent.errors import InternalError, InvalidArgumentError

if TYPE_CHECKING:  # The process of a Python model has tensors, and no storage.
    from repoagent.config import ModelConfig
    from repoagent.storage.files.files import ModelFiles


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

    @property
    def config_name(self) -> str:
        """Its name in ``config.pbtxt``, such as ``TYPE_FP32``; BYTES is ``TYPE_STRING`` there."""
        return "TYPE_STRING" if self is DataType.BYTES else f"TYPE_{self.name}"


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

BY_CONFIG_NAME: Final = {kind.config_name: kind for kind in DataType}

_FROM_NUMPY: Final = {dtype: kind for kind, dtype in NUMPY_TYPES.items() if kind is not DataType.BF16}


def data_type_of(array: Array) -> DataType:
    """The data type of ``array``; text and object arrays are BYTES, a type with no counterpart is INVALID."""
    known = _FROM_NUMPY.get(array.dtype)
    if known is not None:
        return known
    return DataType.BYTES if array.dtype.kind in "SU" else DataType.INVALID


def array_at(memory: Any, offset: int, dtype: "np.dtype[Any]", shape: Sequence[int]) -> Array:
    """The array of ``shape`` that begins at ``offset`` of ``memory``, without a copy unless it lies unaligned there.

    The caller has checked that the memory is long enough.
    """
    array: Array = np.ndarray(shape, dtype, memory, offset)
    return array if array.flags.aligned else array.copy()


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


def shapes_agree(one: Sequence[int], other: Sequence[int]) -> bool:
    """Whether both can be the shape of one tensor; -1 stands for any dimension."""
    return len(one) == len(other) and all(a == b or a == -1 or b == -1 for a, b in zip(one, other, strict=True))


class _Rule:
    """One tensor's way from one shape to another; ``-1`` dimensions keep their values, in order."""

    def __init__(self, source: Iterable[int], target: Iterable[int], batched: bool) -> None:
        self._source = tuple(source)
        self._target = tuple(target)
        self._batched = batched

    def apply(self, tensor: Tensor) -> Tensor:
        shape = tuple(tensor.shape)
        batch, dims = (shape[:1], shape[1:]) if self._batched else ((), shape)
        variable = iter([got for want, got in zip(self._source, dims, strict=False) if want == -1])
        target = [next(variable, -1) if dim == -1 else dim for dim in self._target]
        try:
            return Tensor(tensor.data_type, tensor.array.reshape((*batch, *target)))
        except ValueError as error:
            raise InternalError(f"a tensor of shape {shape} cannot be reshaped to {[*batch, *target]}") from error


class Reshaper:
    """All reshapes of one model. :meth:`of` returns None for the many models that have none."""

    def __init__(self, inputs: Mapping[str, _Rule], outputs: Mapping[str, _Rule]) -> None:
        self._inputs = inputs
        self._outputs = outputs

    @classmethod
    def of(cls, config: "ModelConfig") -> "Reshaper | None":
        """The reshapes that ``config`` asks for."""
        batched = config.max_batch_size > 0
        inputs = {
            item.name: _Rule(item.dims, item.reshape.shape, batched)
            for item in config.input
            if item.HasField("reshape")
        }
        outputs = {
            item.name: _Rule(item.reshape.shape, item.dims, batched)
            for item in config.output
            if item.HasField("reshape")
        }
        return cls(inputs, outputs) if inputs or outputs else None

    def to_model(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The inputs of a request in the shapes that the model wants."""
        return self._apply(self._inputs, tensors)

    def to_client(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The outputs of the model in the shapes that the configuration promises."""
        return self._apply(self._outputs, tensors)

    @staticmethod
    def _apply(rules: Mapping[str, _Rule], tensors: Mapping[str, Any]) -> dict[str, Tensor]:
        return {name: rules[name].apply(tensor) if name in rules else tensor for name, tensor in tensors.items()}


_MOST_TEXT: Final = 1 << 26


def blank(data_type: DataType, dims: Sequence[int]) -> Array:
    """Zeros, or empty texts."""
    if data_type is DataType.BYTES:
        return np.full(dims, b"", dtype=object)
    return np.zeros(dims, dtype=NUMPY_TYPES[data_type])


def read_tensor(files: "ModelFiles", path: str, place: str, data_type: DataType, dims: Sequence[int]) -> Array:
    """The tensor of that type and shape in a file of the model. ``place`` names in messages what it is for. Raises
    ``InvalidArgumentError`` if the file does not hold as much."""
    count = math.prod(dims)
    fixed = data_type is not DataType.BYTES
    with files.open(path) as stream:  # no more than the tensor takes, whatever the size of the file is
        content = stream.read(count * NUMPY_TYPES[data_type].itemsize + 1 if fixed else _MOST_TEXT + 1)
    if not fixed and len(content) > _MOST_TEXT:
        raise InvalidArgumentError(f"{place}: file '{path}' has more than {_MOST_TEXT} bytes")
    if data_type is DataType.BYTES:
        array = parse_bytes_tensor(content)
    else:
        size = NUMPY_TYPES[data_type].itemsize
        if len(content) != count * size:
            raise InvalidArgumentError(f"{place}: file '{path}' has {len(content)} bytes, expected {count * size}")
        array = np.frombuffer(content, dtype=NUMPY_TYPES[data_type])
    if array.size != count:
        raise InvalidArgumentError(f"{place}: file '{path}' has {array.size} elements, expected {count}")
    return array.reshape(dims)


def parse_bytes_tensor(content: bytes) -> Array:
    """The elements of a BYTES tensor in its binary form: each is a 4-byte little-endian length and that many bytes.
    Raises ``InvalidArgumentError`` if the lengths do not add up."""
    elements = []
    offset, end = 0, len(content)
    while offset < end:
        start = offset + 4
        offset = start + int.from_bytes(content[offset:start], "little")
        elements.append(content[start:offset])
    if offset != end:
        raise InvalidArgumentError("a BYTES tensor ends in the middle of an element")
    array = np.empty(len(elements), dtype=object)
    array[:] = elements
    return array
