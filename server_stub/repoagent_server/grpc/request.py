"""``ModelInferRequest`` to the core's request. Texts and the order of checks are Triton's."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.request import Asked, AskedFields, ParameterValue
from repoagent.serving.requests.tensor import Array, DataType, Tensor
from repoagent_server.codec.binary import (
    BY_NAME,
    MAX_DIMENSIONS,
    Buffer,
    RequestLabel,
    TypeInfo,
    bytes_array,
    tensor_array,
    too_many_dimensions,
)
from repoagent_server.codec.fields import check_parameters
from repoagent_server.codec.infer_request import check_tensors
from repoagent_server.grpc import messages_pb2 as pb
from repoagent_server.handlers.inference import check_version
from repoagent_server.handlers.requested_outputs import RequestedOutputs
from repoagent_server.handlers.shared_memory import NO_REGIONS, Regions, Span

EMPTY_FINAL: Final = "triton_enable_empty_final_response"

_Input = pb.ModelInferRequest.InferInputTensor
_Output = pb.ModelInferRequest.InferRequestedOutputTensor


@dataclass(slots=True)
class Decoded:
    """What a message asks for."""

    asked: Asked
    requested: RequestedOutputs
    empty_final: bool
    """A stream wants an empty final response."""


def read_infer(
    message: pb.ModelInferRequest,
    regions: Regions = NO_REGIONS,
    limits: Limits = DEFAULT_LIMITS,
    raw: Sequence[Buffer] | None = None,
) -> Decoded:
    """What ``message`` asks for.

    Raw tensors are views of ``raw`` or else of the message's own bytes, those in shared memory of ``regions``.

    Raises:
        InvalidArgumentError: the message makes no sense.
        NotFoundError: a region is not there.
        UnsupportedError: shared memory is not allowed.
    """
    name = message.model_name
    version = check_version(message.model_version)
    label = RequestLabel(name, message.id, limits)
    check_parameters(len(message.parameters), limits)
    fields: AskedFields = {"id": message.id}
    parameters: dict[str, ParameterValue] = {}
    empty_final = _read_parameters(message.parameters, fields, parameters)
    check_tensors("inputs", len(message.inputs), label, limits)
    check_tensors("outputs", len(message.outputs), label, limits)
    inputs: dict[str, Tensor] = {}
    volatile = _read_inputs(message, message.raw_input_contents if raw is None else raw, inputs, label, regions)
    requested = RequestedOutputs(max_elements=limits.classes)
    names = _read_outputs(message.outputs, requested, label, regions) if message.outputs else ()
    asked = Asked(name, inputs, version, names, parameters=parameters, volatile=volatile, **fields)
    return Decoded(asked, requested, empty_final)


def _read_inputs(
    message: pb.ModelInferRequest,
    raw_contents: Sequence[Buffer],
    inputs: dict[str, Tensor],
    label: RequestLabel,
    regions: Regions,
) -> bool:
    """Read them; whether one is in shared memory."""
    spans = {entry.name: _input_span(entry, label, regions) for entry in message.inputs if entry.parameters}
    shared = sum(span is not None for span in spans.values())
    raw = _raw_contents(raw_contents, len(message.inputs) - shared, shared, label)
    for entry in message.inputs:
        if entry.name in inputs:
            raise label.error(f"input '{entry.name}' already exists in request")
        info = BY_NAME.get(entry.datatype)
        if info is None:
            _check_contents(None, entry, label)
            raise InvalidArgumentError(f"invalid datatype for input {entry.name}")
        shape = _shape(entry, label)
        span = spans.get(entry.name)
        try:
            if span is not None:
                array = tensor_array(info, span.view().toreadonly(), shape, entry.name, label)
            elif raw is not None:
                array = _from_raw(info, raw, shape, entry, label)
            else:
                array = _from_contents(info, shape, entry, label)
        except (ValueError, OverflowError):
            # Only NumPy raises these: too many dimensions, or too large ones around a zero.
            raise label.error(f"input '{entry.name}' has shape {shape}, which no array can have") from None
        inputs[entry.name] = Tensor(info.data_type, array)
    return any(span is not None for span in spans.values())


def _input_span(entry: _Input, label: RequestLabel, regions: Regions) -> Span | None:
    span = _span(entry.name, entry.parameters, regions)
    if span is not None and entry.HasField("contents"):
        raise InvalidArgumentError(
            f"unexpected 'content' provided when using shared memory for input tensor '{entry.name}' for model "
            f"'{label.model}'"
        )
    return span


def _raw_contents(raw: Sequence[Buffer], needed: int, shared: int, label: RequestLabel) -> Iterator[Buffer] | None:
    """The raw contents, one for each input that is not in shared memory; None if the message has none."""
    if not raw:
        return None
    if len(raw) > needed and not shared:
        raise label.error(
            f"expected {needed} raw_input_contents, one for each input, but got {len(raw)} for model '{label.model}'"
        )
    return iter(raw)


def _shape(entry: _Input, label: RequestLabel) -> list[int]:
    if len(entry.shape) > MAX_DIMENSIONS:
        raise too_many_dimensions(entry.name, len(entry.shape))
    shape = list(entry.shape)
    if shape and min(shape) < 0:
        raise label.error(
            f"All input dimensions should be specified for input '{entry.name}' for model '{label.model}', got "
            f"[{','.join(map(str, shape))}]"
        )
    return shape


def _from_raw(info: TypeInfo, raw: Iterator[Buffer], shape: list[int], entry: _Input, label: RequestLabel) -> Array:
    if entry.HasField("contents"):
        raise InvalidArgumentError(
            f"contents field must not be specified when using raw_input_contents for '{entry.name}' for model "
            f"'{label.model}'"
        )
    data = next(raw, None)
    if data is None:
        raise InvalidArgumentError(
            f"unable to find data for input tensor '{entry.name}' for model '{label.model}' in request."
        )
    return tensor_array(info, data, shape, entry.name, label)


def _read_outputs(
    outputs: Iterable[_Output], requested: RequestedOutputs, label: RequestLabel, regions: Regions
) -> tuple[str, ...]:
    """The names."""
    names: dict[str, None] = {}
    for output in outputs:
        if output.name in names:
            raise label.error(f"output '{output.name}' already exists in request")
        if output.parameters:
            span, count = _span(output.name, output.parameters, regions), _class_count(output)
            if span is not None and count:
                raise InvalidArgumentError("output can't set both 'shared_memory_region' and 'classification'")
            if span is not None:
                requested.spans[output.name] = span
            if count:
                requested.classes[output.name] = count
        names[output.name] = None
    return tuple(names)


def _class_count(output: _Output) -> int:
    if "classification" not in output.parameters:
        return 0
    kind, value = _value(output.parameters["classification"])
    if kind != "int64_param":
        raise InvalidArgumentError("invalid value type for 'classification' parameter, expected int64_param")
    if value <= 0:
        raise InvalidArgumentError("invalid value for 'classification' parameter, expected >= 0")
    return int(value)


def _value(parameter: pb.InferParameter) -> tuple[str | None, Any]:
    kind = parameter.WhichOneof("parameter_choice")
    return kind, getattr(parameter, kind) if kind else None


def _read_parameters(
    given: Mapping[str, pb.InferParameter], fields: AskedFields, parameters: dict[str, ParameterValue]
) -> bool:
    empty_final = False
    for name, parameter in given.items():
        if name == EMPTY_FINAL:
            empty_final = _expect(name, parameter, "bool_param")
        elif name in _KNOWN:
            fields[_KNOWN[name][0]] = _known(name, parameter)  # type: ignore[literal-required]
        else:
            parameters[name] = _plain(name, parameter)
    return empty_final


_PLAIN_KINDS: Final = frozenset({"int64_param", "bool_param", "string_param", "double_param"})


def _plain(name: str, parameter: pb.InferParameter) -> ParameterValue:
    if name.startswith("triton_"):
        raise InvalidArgumentError(
            "parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
            f"with 'triton_' are allowed: {EMPTY_FINAL}"
        )
    kind, value = _value(parameter)
    if kind not in _PLAIN_KINDS:
        raise InvalidArgumentError(
            f"invalid value type for '{name}' parameter, expected int64_param, bool_param, or string_param."
        )
    plain: ParameterValue = value
    return plain


def _expect(name: str, parameter: pb.InferParameter, *kinds: str) -> Any:
    kind, value = _value(parameter)
    if kind not in kinds:
        listed = kinds[0] if len(kinds) == 1 else f"{', '.join(kinds[:-1])} or {kinds[-1]}"
        raise InvalidArgumentError(f"invalid value type for '{name}' parameter, expected {listed}.")
    return value


def _known(name: str, parameter: pb.InferParameter) -> Any:
    value = _expect(name, parameter, *_KNOWN[name][1])
    if name == "sequence_id" and isinstance(value, int):
        return value % 2**64  # Identifiers are unsigned in the core; a negative one keeps its bits, as in Triton.
    if name in ("priority", "timeout") and value < 0:
        raise InvalidArgumentError(f"invalid value for '{name}', expected value >= 0.")
    return value


_KNOWN: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "sequence_id": ("correlation_id", ("int64_param", "string_param")),
    "sequence_start": ("sequence_start", ("bool_param",)),
    "sequence_end": ("sequence_end", ("bool_param",)),
    "priority": ("priority", ("int64_param", "uint64_param")),
    "timeout": ("timeout_us", ("int64_param",)),
}
"""The parameters with a meaning: the field of a request that each is, and the kinds of value that it may have."""


_REGION = "shared_memory_region"
_RANGE = ("shared_memory_offset", "shared_memory_byte_size")


def _span(tensor: str, parameters: Mapping[str, pb.InferParameter], regions: Regions) -> Span | None:
    """Where ``tensor`` lies in shared memory, None if no parameter places it there.

    Raises:
        InvalidArgumentError: they are incomplete or of the wrong type, or the place lies outside of the region.
        NotFoundError: there is no such region.
        UnsupportedError: shared memory is not allowed.
    """
    if _REGION not in parameters:
        for name in _RANGE:
            if name in parameters:
                raise InvalidArgumentError(
                    f"'{name}' can not be specified without '{_REGION}' parameter for tensor '{tensor}'"
                )
        return None
    region = _memory_parameter(tensor, _REGION, parameters, "string_param")
    # A negative number is a large one, as in Triton.
    offset, size = (
        _memory_parameter(tensor, name, parameters, "int64_param") % 2**64 if name in parameters else None
        for name in _RANGE
    )
    if size is None:
        raise InvalidArgumentError(
            f"'{_RANGE[1]}' must be specified along with '{_REGION}' parameter for tensor '{tensor}'"
        )
    return regions.span(region, offset or 0, size)


def _memory_parameter(tensor: str, name: str, parameters: Mapping[str, pb.InferParameter], kind: str) -> Any:
    parameter = parameters[name]
    if parameter.WhichOneof("parameter_choice") != kind:
        raise InvalidArgumentError(f"invalid value type for '{name}' parameter for tensor '{tensor}', expected {kind}.")
    return getattr(parameter, kind)


# Typed contents of inputs.

_AT_ONCE: Final = 1 << 16
"""Elements that are handled in one go."""

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


def _check_contents(info: TypeInfo | None, entry: _Input, label: RequestLabel) -> None:
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


def _from_contents(info: TypeInfo, shape: list[int], entry: _Input, label: RequestLabel) -> Array:
    """The array that the typed contents of an input make.

    Raises:
        InvalidArgumentError: there are none, or they do not fit the type or the shape.
    """
    _check_contents(info, entry, label)
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
