"""Typed contents of inputs to arrays. Texts and the order of checks are Triton's."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.tensor import Array, DataType
from repoagent_server.codec.binary import RequestLabel, TypeInfo, bytes_array
from repoagent_server.grpc import messages_pb2 as pb

_AT_ONCE: Final = 1 << 16
"""Elements that are handled in one go."""

_Input = pb.ModelInferRequest.InferInputTensor

#: Field -> the type that its values are taken for, in the order in which fields are looked at.
_KINDS: Final[Mapping[str, DataType]] = {
    "bool_contents": DataType.BOOL,
    "int_contents": DataType.INT32,
    "int64_contents": DataType.INT64,
    "uint_contents": DataType.UINT32,
    "uint64_contents": DataType.UINT64,
    "fp32_contents": DataType.FP32,
    "fp64_contents": DataType.FP64,
    "bytes_contents": DataType.BYTES,
}
_FIELDS: Final[Mapping[DataType, str]] = {
    **{kind: field for field, kind in _KINDS.items()},
    DataType.INT8: "int_contents",
    DataType.INT16: "int_contents",
    DataType.UINT8: "uint_contents",
    DataType.UINT16: "uint_contents",
}


def check_contents(info: TypeInfo | None, entry: _Input, label: RequestLabel) -> None:
    """Refuse contents that are not of the input's type; without ``info`` that type is none.

    Raises:
        InvalidArgumentError: they are of another one, or of several.
    """
    where = f"unexpected explicit tensor data for input tensor '{entry.name}' for model '{label.model}'"
    expected = _FIELDS.get(info.data_type) if info is not None else None
    supplied = False
    for field, kind in _KINDS.items():
        if not getattr(entry.contents, field):
            continue
        if supplied:
            raise InvalidArgumentError(f"{where}, binary data was already supplied.")
        if field != expected:
            name = info.name if info is not None else "<invalid>"
            raise InvalidArgumentError(f"{where} of type '{kind.name}', expected datatype '{name}'")
        supplied = True


def from_contents(info: TypeInfo, shape: list[int], entry: _Input, label: RequestLabel) -> Array:
    """The array that the typed contents of an input make.

    Raises:
        InvalidArgumentError: there are none, or they do not fit the type or the shape.
    """
    check_contents(info, entry, label)
    count = prod(shape)
    if count and not entry.HasField("contents"):
        raise InvalidArgumentError(
            f"unable to find data for input tensor '{entry.name}' for model '{label.model}' in request."
        )
    field = _FIELDS.get(info.data_type)
    if field is None:
        raise label.error(
            f"input '{entry.name}' of type '{info.name}' has no typed contents; use raw_input_contents for it"
        )
    values = getattr(entry.contents, field)
    if len(values) != count:
        if info.data_type is DataType.BYTES:
            raise label.wrong_count(entry.name, count, len(values))
        raise label.wrong_size(entry.name, count * info.size, len(values) * info.size)
    return _array(info, values, entry.name, label).reshape(shape)


def _array(info: TypeInfo, values: Sequence[Any], name: str, label: RequestLabel) -> Array:
    if info.data_type is DataType.BYTES:
        return bytes_array(list(values))
    try:
        array = np.empty(len(values), info.dtype)
        for start in range(0, len(values), _AT_ONCE):  # others have a turn in between
            array[start : start + _AT_ONCE] = list(values[start : start + _AT_ONCE])
        return array
    except OverflowError:
        raise label.error(f"input '{name}' has a value that type '{info.name}' cannot hold") from None
