"""The body of an inference request: JSON, with tensors in it or behind it.

The order of the checks is Triton's (id, parameters, inputs, outputs), so that a request with several faults gets the
same answer. Whether the model exists, and has such inputs, is the core's business.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

from repoagent.errors import InternalError, InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.request import Asked, AskedFields, ParameterValue
from repoagent.serving.requests.tensor import Array, Tensor
from repoagent_server.codec.binary import (
    BY_NAME,
    MAX_DIMENSIONS,
    MAX_ELEMENTS,
    Buffer,
    RequestLabel,
    TypeInfo,
    tensor_array,
    too_many_dimensions,
    too_many_elements,
)
from repoagent_server.codec.fields import (
    MISSING,
    array_field,
    as_bool,
    as_string,
    as_unsigned,
    complaint,
    find,
    read_parameters,
    string_field,
)
from repoagent_server.codec.json_data import Values, array_from_json
from repoagent_server.codec.json_text import loads
from repoagent_server.codec.long_json import LONG_JSON, frame_within, read_long
from repoagent_server.handlers.requested_outputs import RequestedOutputs
from repoagent_server.handlers.shared_memory import NO_REGIONS, Regions, Span

_NO_MEMBERS: Final[dict[str, Any]] = {}


@dataclass(frozen=True, slots=True)
class OutputEncoding:
    """In which form a client wants the outputs: binary or JSON, by name, and for those it did not name."""

    default_binary: bool = False
    binary: dict[str, bool] = field(default_factory=dict)
    requested: RequestedOutputs = field(default_factory=RequestedOutputs)


_ALL_JSON: Final = OutputEncoding()
_ALL_BINARY: Final = OutputEncoding(default_binary=True)
"""For the many requests that name no outputs: shared, never changed."""


def read_infer(
    body: Buffer,
    header_length: int,
    model: str,
    version: str,
    regions: Regions = NO_REGIONS,
    limits: Limits = DEFAULT_LIMITS,
    look: Callable[[], None] | None = None,
) -> tuple[Asked, OutputEncoding]:
    """Parse the request in ``body``, whose first ``header_length`` bytes are JSON and whose rest is tensors.

    Tensors of fixed-size types are views of ``body``, or of those of ``regions``. Long JSON is read piece by piece;
    ``look`` is called between the pieces, and what it raises ends the reading.

    Raises:
        InternalError: the JSON does not parse, or lacks something, or has something of the wrong type.
        InvalidArgumentError: the contents make no sense.
        UnsupportedError: a tensor is in shared memory, which is not allowed.
        NotFoundError: it is in a region that is not there.
    """
    text = body if header_length == len(body) else memoryview(body)[:header_length]
    document = loads(text) if len(text) < LONG_JSON else read_long(text, frame_within(limits), look=look)
    fields: AskedFields = {}
    parameters: dict[str, ParameterValue] = {}
    label = RequestLabel(model, limits=limits)
    form = _ALL_JSON
    if type(document) is dict:
        if "id" in document:
            fields["id"] = label.request_id = as_string(document["id"], "Unable to parse 'id': ")
        if "parameters" in document and read_parameters(document["parameters"], fields, parameters, limits):
            form = _ALL_BINARY
    items = array_field(document, "inputs")
    check_tensors("inputs", len(items), label, limits)
    inputs: dict[str, Tensor] = {}
    tail = _Tail(body, header_length, regions)
    _read_inputs(items, inputs, tail, label, _may_hold_booleans(text), limits)
    names: tuple[str, ...] = ()
    if "outputs" in document:
        form = OutputEncoding(form.default_binary, requested=RequestedOutputs(max_elements=limits.classes))
        outputs = array_field(document, "outputs")
        check_tensors("outputs", len(outputs), label, limits)
        names = _read_outputs(outputs, form, label, regions)
    return Asked(model, inputs, version, names, parameters=parameters, volatile=tail.shared, **fields), form


def check_tensors(kind: str, count: int, label: RequestLabel, limits: Limits) -> None:
    """Refuse more ``inputs`` or ``outputs`` than a request may have."""
    if count > limits.request_tensors:
        raise label.error(
            f"the request has {count} {kind}, and at most {limits.request_tensors} are allowed "
            f"({limits.flag('request_tensors')})"
        )


def _may_hold_booleans(text: Buffer) -> bool:
    """Whether ``true`` or ``false`` is written anywhere in ``text``.

    A letter of each that is in none of the usual names is looked for first, which takes a tenth of the time.
    """
    if type(text) is not bytes:
        return True
    return (b"r" in text and b"true" in text) or (b"l" in text and b"false" in text)


class _Tail:
    """What follows the JSON: the tensors' bytes, taken one after another. Others are in shared memory."""

    __slots__ = ("body", "end", "position", "regions", "shared")

    def __init__(self, body: Buffer, position: int, regions: Regions) -> None:
        self.regions = regions
        self.shared = False
        """Whether a tensor was in shared memory."""
        self.body = body
        self.position = position
        self.end = len(body)

    def take(self, size: int, name: str, model: str) -> int:
        """The offset of the next ``size`` bytes."""
        start = self.position
        self.position += size
        if self.position > self.end:
            raise InvalidArgumentError(
                f"unexpected size for input '{name}', expecting {self.position - self.end} additional bytes for model "
                f"'{model}'"
            )
        return start


def _read_inputs(
    items: list[Any],
    inputs: dict[str, Tensor],
    tail: _Tail,
    label: RequestLabel,
    may_hold_booleans: bool,
    limits: Limits,
) -> None:
    for item in items:
        members = item if type(item) is dict else _NO_MEMBERS
        data = members.get("data", MISSING)
        size = MISSING
        if data is MISSING or "parameters" in members:
            size = _binary_size(data, members.get("parameters"))
        name, datatype = members.get("name"), members.get("datatype")
        if type(name) is not str or type(datatype) is not str:
            name, datatype = string_field(members, "name"), string_field(members, "datatype")
        info = BY_NAME.get(datatype)
        shape = _shape(members)
        if name in inputs:
            raise label.error(f"input '{name}' already exists in request")
        if info is None:
            raise InvalidArgumentError(f"invalid datatype for input {name}")
        try:
            if data is MISSING:
                array = (
                    _from_region(info, members, shape, tail, label)
                    if size is MISSING
                    else _from_tail(info, size, shape, name, tail, label)
                )
            elif type(data) is list or type(data) is Values:
                array = array_from_json(
                    info, data, shape, prod(shape), name, label, may_hold_booleans, limits.json_depth
                )
            else:
                raise InternalError(f"Unable to parse 'data': {complaint('array')}")
        except (ValueError, OverflowError):
            # Only NumPy raises these: too many dimensions, or too large ones around a zero.
            raise label.error(f"input '{name}' has shape {shape}, which no array can have") from None
        inputs[name] = Tensor(info.data_type, array)
    if tail.position != tail.end:
        raise InvalidArgumentError(f"unexpected additional input data for model '{label.model}'")


def _from_tail(
    info: TypeInfo, given_size: object, shape: list[int], name: str, tail: _Tail, label: RequestLabel
) -> Array:
    size = as_unsigned(given_size, "Unable to parse 'binary_data_size': ")
    start = tail.take(size, name, label.model)
    return tensor_array(info, memoryview(tail.body)[start : start + size], shape, name, label)


def _shape(members: dict[str, Any]) -> list[int]:
    shape = members.get("shape")
    if type(shape) is not list:
        shape = array_field(members, "shape")
    if len(shape) > MAX_DIMENSIONS:
        raise too_many_dimensions(members["name"], len(shape))
    for size in shape:
        if type(size) is not int or size < 0:
            if type(size) is float and size > MAX_ELEMENTS:  # which a whole number beyond 64 bits becomes
                raise too_many_elements(members["name"])
            as_unsigned(size, "Unable to parse 'shape': ")
    if prod(shape) > MAX_ELEMENTS:
        raise too_many_elements(members["name"])
    return shape


def _from_region(info: TypeInfo, members: dict[str, Any], shape: list[int], tail: _Tail, label: RequestLabel) -> Array:
    data = _span(members["parameters"], tail.regions).view().toreadonly()
    tail.shared = True
    return tensor_array(info, data, shape, members["name"], label)


def _binary_size(data: object, parameters: Any) -> object:
    """The ``binary_data_size`` of an input, MISSING if its values are elsewhere.

    Raises:
        InvalidArgumentError: it has no values, or names two places for them.
    """
    size = find(parameters, "binary_data_size")
    region = find(parameters, "shared_memory_region")
    if data is MISSING and (size is MISSING) != (region is MISSING):
        return size
    sources = {"'data'": data, "'binary_data_size'": size, "'shared_memory_region'": region}
    given = [name for name, source in sources.items() if source is not MISSING]
    if len(given) != 1:
        raise InvalidArgumentError(
            "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
            "'shared_memory_region' in 'parameters'. But " + (" ".join(["set", *given]) if given else "no field is set")
        )
    return size


def _span(parameters: Any, regions: Regions) -> Span:
    """Where a tensor lies in shared memory; the parameters have a region."""
    region = as_string(parameters["shared_memory_region"], "Unable to parse 'shared_memory_region': ")
    offset, size = (
        as_unsigned(parameters[name], f"Unable to parse '{name}': ") if name in parameters else 0
        for name in ("shared_memory_offset", "shared_memory_byte_size")
    )
    return regions.span(region, offset, size)


def _read_outputs(items: list[Any], form: OutputEncoding, label: RequestLabel, regions: Regions) -> tuple[str, ...]:
    """The names."""
    for item in items:
        parameters = find(item, "parameters")
        shared = find(parameters, "shared_memory_region") is not MISSING
        if shared:
            _check_alone(parameters)
        name = string_field(item, "name")
        count = _class_count(parameters)
        span = _span(parameters, regions) if shared else None
        binary = MISSING if shared else find(parameters, "binary_data")
        wanted = binary is not MISSING and as_bool(binary, "Unable to parse 'binary_data': ")
        if name in form.binary:
            raise label.error(f"output '{name}' already exists in request")
        form.binary[name] = wanted
        if count:
            form.requested.classes[name] = count
        if span is not None:
            form.requested.spans[name] = span
    return tuple(form.binary)


def _check_alone(parameters: Mapping[str, Any]) -> None:
    """An output that goes to shared memory goes nowhere else."""
    if "classification" in parameters:
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'classification'")
    if "binary_data" in parameters and as_bool(parameters["binary_data"], "Unable to set 'binary_data': "):
        raise InvalidArgumentError("Output can't set both 'shared_memory_region' and 'binary_data'")


def _class_count(parameters: object) -> int:
    count = find(parameters, "classification")
    return 0 if count is MISSING else as_unsigned(count, "Unable to set 'classification': ")
