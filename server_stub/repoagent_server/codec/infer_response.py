"""An inference response as JSON, with the outputs that are wanted in binary behind it."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.request import InferResponse
from repoagent.serving.requests.tensor import Array, Tensor
from repoagent_server.codec.binary import BY_TYPE, Buffer, JsonKind, TypeInfo, pack_bytes
from repoagent_server.codec.infer_request import OutputEncoding
from repoagent_server.codec.json_text import (
    LATER,
    LONG_ARRAY,
    LONG_TEXT,
    Fragment,
    array_fragment,
    array_pieces,
    dumps_with_arrays,
    fragment,
    list_pieces,
)
from repoagent_server.handlers.requested_outputs import as_bytes

_NO_PARTS: Final[tuple[Buffer, ...]] = ()
_FEW: Final = 3
"""Pieces that are joined: a list of texts that are not long has as many."""


def is_long(response: InferResponse, form: OutputEncoding) -> bool:
    """Whether writing ``response`` takes long: many values as JSON, or many or long elements of BYTES, one by one."""
    for name, tensor in response.outputs.items():
        texts = BY_TYPE[tensor.data_type].json is JsonKind.STRING
        if tensor.array.size > LONG_ARRAY:
            binary = name in form.requested.spans or form.binary.get(name, form.default_binary)
            if not binary or texts:
                return True
        elif texts and sum(map(len, tensor.array.ravel().tolist())) > LONG_TEXT:
            return True
    return False


def write_infer(response: InferResponse, form: OutputEncoding) -> tuple[Sequence[bytes], Sequence[Buffer]]:
    """The JSON in pieces, and the binary outputs in the order in which it names them; these are views, not copies.

    Raises:
        InvalidArgumentError: an output has a type that JSON cannot carry, and was not asked for in binary.
    """
    document: dict[str, Any] = {}
    if response.id:
        document["id"] = response.id if response.id.isascii() else fragment(response.id)
    document["model_name"] = response.model_name
    document["model_version"] = response.model_version
    if response.parameters:
        document["parameters"] = fragment(response.parameters)
    outputs: list[dict[str, Any]] = []
    document["outputs"] = outputs
    parts: list[Buffer] | None = None
    later: list[list[bytes]] = []
    for name, tensor in response.outputs.items():
        info = BY_TYPE[tensor.data_type]
        array = tensor.array
        output: dict[str, Any] = {"name": name, "datatype": info.name, "shape": array.shape}
        outputs.append(output)
        if name in form.requested.spans:
            continue
        if form.binary.get(name, form.default_binary):
            part = _raw(info, array)
            output["parameters"] = {"binary_data_size": len(part)}
            if len(part):
                parts = [part] if parts is None else [*parts, part]
        elif info.code and array.dtype is info.dtype and array.size <= LONG_ARRAY:
            output["data"] = array.ravel()
        else:
            values = _flat_values(info, array)
            if isinstance(values, list) and len(values) > _FEW:
                output["data"] = LATER
                later.append(values)
            else:
                output["data"] = Fragment(b"".join(values)) if isinstance(values, list) else values
    return dumps_with_arrays(document, outputs, later), _NO_PARTS if parts is None else parts


def _raw(info: TypeInfo, array: Array) -> Buffer:
    if info.json is JsonKind.STRING:
        return pack_bytes(_elements(array))
    if array.size == 0:
        return b""
    contiguous: Any = np.ascontiguousarray(array, info.dtype)
    return memoryview(contiguous).cast("B")


def json_values(info: TypeInfo, tensor: Tensor) -> Fragment:
    """The values as one flat list in JSON.

    Raises:
        InvalidArgumentError: the type has no JSON form.
    """
    values = _flat_values(info, tensor.array)
    return array_fragment(values) if isinstance(values, np.ndarray) else Fragment(b"".join(values))


def _flat_values(info: TypeInfo, array: Array) -> Array | list[bytes]:
    """The values in one dimension; many, and strings, which may not be UTF-8, as JSON already. Raises as above."""
    if info.json is JsonKind.NONE:
        raise InvalidArgumentError(
            f"sending {info.name} data via JSON is not supported. Please use the binary data format for output"
        )
    if info.json is JsonKind.STRING:
        return list(list_pieces(_elements(array)))
    if array.dtype != info.dtype:
        array = array.astype(info.dtype)
    flat = array.ravel()
    return flat if flat.size <= LONG_ARRAY else array_pieces(flat)


def _elements(array: Array) -> Iterator[bytes]:
    flat = array.ravel()
    for start in range(0, flat.size, LONG_ARRAY):
        yield from map(as_bytes, flat[start : start + LONG_ARRAY].tolist())
