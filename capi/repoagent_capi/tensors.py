"""Tensors as they cross: over the memory of the program where that is possible."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.server.datatypes import as_bytes_array, deserialize, serialize
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType, Tensor
from repoagent_capi._crossing import ffi
from repoagent_capi.errors import as_bytes
from repoagent_capi.servers import SERVERS, request_to
from repoagent_capi.triton_bindings.request import raw_tensor

_TYPES: Final = tuple(DataType)
_NUMBERS: Final = {kind: int(kind) for kind in DataType}
_BYTES: Final = DataType.BYTES
_RAW: Final = int(DataType.INVALID)
_NOWHERE: Final[Mapping[str, int]] = {}


def input_tensor(crossed: Any, model: str, name: str, item: Any) -> Tensor:
    """An input of the core over the caller's memory; elements of BYTES are copied.

    Raises:
        InvalidArgumentError: the memory does not hold what the shape asks for.
    """
    if item.datatype == _RAW:
        served = SERVERS[crossed.server].core.find(request_to(model, crossed.model_version))
        return raw_tensor(served.config, model, name, _memory(item))
    kind = _TYPES[item.datatype]
    shape = tuple(ffi.unpack(item.shape, item.dim_count)) if item.dim_count else ()
    if any(dim < 0 for dim in shape):
        raise InvalidArgumentError(f"input '{name}' of model '{model}' has a negative dimension: {list(shape)}")
    if kind is _BYTES:
        return Tensor(kind, deserialize(_memory(item), shape))
    dtype = NUMPY_TYPES[kind]
    needed = dtype.itemsize * math.prod(shape)
    if item.byte_size != needed:
        raise InvalidArgumentError(
            f"input byte size mismatch for input '{name}' for model '{model}'. Expected {needed}, got {item.byte_size}"
        )
    return Tensor(kind, _array(item, dtype).reshape(shape))


def _memory(item: Any) -> Any:
    return memoryview(ffi.buffer(item.base, item.byte_size)).toreadonly() if item.byte_size else b""


def _array(item: Any, dtype: "np.dtype[Any]") -> Any:
    if not item.byte_size:
        return np.empty(0, dtype)
    array = np.frombuffer(_memory(item), dtype)
    return array if array.flags.aligned else array.copy()


def fill_output(
    output: Any, name: str, tensor: Tensor, kept: list[Any], addresses: Mapping[str, int] = _NOWHERE
) -> None:
    """``tensor`` as a ``core_output``; ``kept`` must live as long as it is used.

    An output that lies at its one of ``addresses`` is in memory of the program, and is not kept.
    """
    array = tensor.array
    if tensor.data_type is _BYTES:
        memory: Any = serialize(as_bytes_array(array).reshape(-1).tolist())
        size = len(memory)
    else:
        memory = array if array.flags.c_contiguous else np.ascontiguousarray(array)
        size = memory.nbytes
    text, shape = ffi.new("char[]", as_bytes(name)), ffi.new("int64_t[]", list(array.shape))
    base = ffi.from_buffer(memory) if size else ffi.NULL
    kept += (text, shape)
    if not addresses or addresses.get(name) != int(ffi.cast("uintptr_t", base)):
        kept += (memory, base)
    output.name = text
    output.datatype = _NUMBERS[tensor.data_type]
    output.shape = shape
    output.dim_count = len(array.shape)
    output.base = base
    output.byte_size = size
