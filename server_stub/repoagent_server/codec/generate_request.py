"""The body of a generate request: JSON whose members are inputs and parameters, distinguished by the model's metadata.

Members are handled in the order in which they are written, as Triton does, so that a request with several faults gets
the same answer. Of members that share a name the value of the first one counts.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final

import numpy as np

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.request import Asked, ParameterValue
from repoagent.serving.requests.tensor import Array, Tensor
from repoagent_server.codec.binary import BY_NAME, Buffer, JsonKind, RequestLabel, TypeInfo
from repoagent_server.codec.fields import as_string, check_parameters, complaint, parameter_value
from repoagent_server.codec.json_data import Values, array_of_values
from repoagent_server.codec.json_text import JsonObject, loads_ordered, too_deep
from repoagent_server.codec.long_json import LONG_JSON, frame_within, read_long

_NESTED: Final = "parameters"
_LENGTH_SIZE: Final = 4
"""Bytes in front of each element of a BYTES tensor."""


def read_generate(
    body: Buffer,
    metadata: Mapping[str, Any],
    model: str,
    version: str,
    max_input_size: int,
    limits: Limits = DEFAULT_LIMITS,
    look: Callable[[], None] | None = None,
) -> Asked:
    """Parse the request in ``body`` for the model that ``metadata`` describes.

    Args:
        body: JSON text.
        metadata: The model's metadata as the protocol gives them.
        model: Its name.
        version: The version wanted, or "".
        max_input_size: How many bytes the tensors may have together.
        limits: How many members the JSON may have.
        look: Called between the pieces of a long body; what it raises ends the reading.

    Raises:
        InternalError: the JSON does not parse, or has something of the wrong type.
        InvalidArgumentError: the contents make no sense, or are too large.
    """
    short = len(body) < LONG_JSON
    document = loads_ordered(body) if short else read_long(body, frame_within(limits), ordered=True, look=look)
    if type(document) is not JsonObject:
        raise InternalError("attempt to get members for non-object")
    check_parameters(len(document), limits)
    first = _first_values(document)
    request_id = as_string(first["id"], "Unable to parse 'id': ") if "id" in first else ""
    inputs = {item["name"]: (BY_NAME[item["datatype"]], item["shape"]) for item in metadata["inputs"]}
    reader = _Reader(RequestLabel(model, request_id), inputs, max_input_size, limits)
    reader.read(document)
    return Asked(model, reader.tensors, version, id=request_id, parameters=reader.parameters)


def _first_values(members: JsonObject) -> dict[str, Any]:
    return dict(reversed(members))


class _Reader:
    """Fills the inputs and parameters of one request."""

    def __init__(
        self,
        label: RequestLabel,
        inputs: Mapping[str, tuple[TypeInfo, list[int]]],
        max_input_size: int,
        limits: Limits,
    ) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.parameters: dict[str, ParameterValue] = {}
        self._inputs = inputs
        self._max_input_size = max_input_size
        self._limits = limits
        self._consumed = 0
        self._label = label

    def read(self, document: JsonObject) -> None:
        first = _first_values(document)
        for name, _ in document:
            if name == _NESTED:
                self._read_nested(first[name])
            else:
                self._read_member(name, first[name])

    def _read_nested(self, value: object) -> None:
        if _NESTED in self._inputs:
            raise InvalidArgumentError(f"Keyword '{_NESTED}' for nested schema also given as input tensor name")
        if type(value) is not JsonObject:
            raise InternalError(f"Expected JSON object for keyword: '{_NESTED}': {complaint('object')}")
        check_parameters(len(value), self._limits)
        first = _first_values(value)
        try:
            for name, _ in value:
                self._read_member(name, first[name])
        except RepoAgentError as error:
            raise type(error)(f"Converting keyword: '{_NESTED}': {error.message}") from None

    def _read_member(self, name: str, value: object) -> None:
        if name not in self._inputs:
            self.parameters[name] = parameter_value(name, value)
            return
        info, dims = self._inputs[name]
        values: list[Any] | Values = value if isinstance(value, Values) else value if type(value) is list else [value]
        shape = _shape(name, dims, len(values))
        self._count(name, _byte_size(name, info, values, self._limits.json_depth))
        try:
            array = array_of_values(info, values)
        except RepoAgentError as error:
            raise type(error)(f"{error.message}: input '{name}'") from None
        if name in self.tensors:
            raise self._label.error(f"input '{name}' already exists in request")
        self.tensors[name] = Tensor(info.data_type, _shaped(array, shape))

    def _count(self, name: str, size: int) -> None:
        """Refuse what makes the tensors too large together. (A short text can mean many bytes: BYTES, FP64.)"""
        if self._consumed + size > self._max_input_size:
            raise InvalidArgumentError(
                f"request size of {self._consumed} bytes with input '{name}' of size {size} bytes exceeds the maximum "
                f"allowed input size of {self._max_input_size}. Use --http-max-input-size to increase the limit."
            )
        self._consumed += size


def _shape(name: str, dims: list[int], count: int) -> list[int]:
    """``dims`` for ``count`` values: the innermost variable dimension takes what the fixed ones leave."""
    fixed = prod(dim for dim in dims if dim != -1)
    rest = count // fixed if fixed and count % fixed == 0 else -1
    if rest < 0 or (rest != 1 and -1 not in dims):
        raise InvalidArgumentError(f"The schema can not convert input '{name}' to tensor with proper shape")
    shape = []
    for dim in reversed(dims):
        shape.append(rest if dim == -1 else dim)
        rest = 1 if dim == -1 else rest
    return shape[::-1]


def _shaped(array: Array, shape: list[int]) -> Array:
    """A tensor without bytes has no dimensions either, as in Triton; whether that will do is the core's business."""
    return array.reshape(shape) if array.size else np.empty((), array.dtype)


def _byte_size(name: str, info: TypeInfo, values: list[Any] | Values, max_depth: int) -> int:
    if info.json is JsonKind.NONE:
        raise InvalidArgumentError(f"input '{name}' has unsupported datatype {info.name}")
    if isinstance(values, Values):
        return sum(_byte_size(name, info, piece, max_depth) for piece in values.pieces)
    if info.json is not JsonKind.STRING:
        return len(values) * info.size
    _check_depth(values, max_depth)
    return sum(
        _LENGTH_SIZE + len(value.encode("utf-8", "surrogateescape")) for value in values if isinstance(value, str)
    )


def _check_depth(values: list[Any], max_depth: int) -> None:
    depth = 0
    level = [value for value in values if type(value) is list]
    while level:
        depth += 1
        if depth >= max_depth:
            raise too_deep(max_depth)
        level = [inner for outer in level for inner in outer if type(inner) is list]
