"""Requests of the Server API, and how they become requests of the serving core."""

import asyncio
import operator
import queue
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.server.datatypes import Array, as_bytes_array, numpy_to_type
from repoagent.server.enums import RequestFlag
from repoagent.server.memory import DeviceOrMemoryType
from repoagent.server.tensor import Tensor, from_core, to_core
from repoagent.serving.requests.request import (
    DISCARD,
    Asked,
    AskedFields,
    InferRequest,
    InferResponse,
    ParameterValue,
    ResponseSender,
)
from repoagent.serving.requests.tensor import NUMPY_TYPES, DataType
from repoagent.serving.requests.tensor import Tensor as CoreTensor

if TYPE_CHECKING:
    from repoagent.server.model import Model


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


_START: Final = int(RequestFlag.SEQUENCE_START)
_END: Final = int(RequestFlag.SEQUENCE_END)
_LIMIT: Final = 1 << 64
_PARAMETER_TYPES: Final = frozenset({str, bool, int, float})


@dataclass(slots=True, eq=False, weakref_slot=True)
class InferenceRequest:
    """A request to a model. It can be sent again, also while an earlier one is still running."""

    model: "Model"
    request_id: str | None = None
    flags: int = 0
    """Bits of :class:`~repoagent.server.enums.RequestFlag`."""
    correlation_id: int | str | None = None
    """The sequence that the request belongs to."""
    priority: int = 0
    timeout: int = 0
    """Microseconds that the request may wait; 0 is forever."""
    inputs: dict[str, Any] = field(default_factory=dict)
    """Tensors, NumPy arrays and scalars, lists, and objects with ``__dlpack__``. They are not copied: leave them as
    they are until the final response."""
    parameters: dict[str, str | int | bool | float] = field(default_factory=dict)
    output_memory_type: DeviceOrMemoryType | None = None
    response_queue: "queue.SimpleQueue[Any] | asyncio.Queue[Any] | None" = None
    """Gets every response, beside the iterator: a SimpleQueue for ``infer``, an asyncio.Queue for ``async_infer``."""


def core_request(request: InferenceRequest, sender: ResponseSender = DISCARD) -> InferRequest:
    """The request in the form of the serving core.

    Raises:
        InvalidArgumentError: an input or a parameter has a type that no model takes, or a number is out of range.
        TypeError: another field has a value of the wrong type.
    """
    version = request.model.version
    asked = Asked(
        request.model.name,
        {name: core_input(value) for name, value in request.inputs.items()},
        "" if version == -1 else str(version),
    )
    if request.parameters:
        asked = replace(asked, parameters=_parameters(request.parameters))
    if request.request_id or request.correlation_id or request.flags or request.priority or request.timeout:
        asked = replace(asked, **_fields(request))
    return InferRequest(asked, sender)


def _fields(request: InferenceRequest) -> AskedFields:
    request_id = request.request_id or ""
    if not isinstance(request_id, str):
        raise TypeError(f"InferenceRequest.request_id must be str, not {type(request_id).__name__}")
    priority = _number("priority", request.priority)
    timeout = _number("timeout", request.timeout)
    sequence = request.correlation_id or 0
    flags = _number("flags", request.flags)
    return {
        "id": request_id,
        "priority": priority,
        "timeout_us": timeout,
        "correlation_id": sequence if isinstance(sequence, str) else _number("correlation_id", sequence),
        "sequence_start": bool(flags & _START),
        "sequence_end": bool(flags & _END),
    }


def _number(name: str, value: Any) -> int:
    """``value`` as an unsigned number of 64 bits, of whichever library it is one."""
    if not hasattr(value, "__index__"):
        raise TypeError(f"InferenceRequest.{name} must be a number, not {type(value).__name__}: {value!r}")
    number = operator.index(value)
    if not 0 <= number < _LIMIT:
        raise InvalidArgumentError(f"InferenceRequest.{name} must be from 0 to 2**64 - 1, not {number}")
    return number


def _parameters(parameters: dict[str, Any]) -> dict[str, ParameterValue]:
    for value in parameters.values():
        if type(value) not in _PARAMETER_TYPES:
            raise InvalidArgumentError(f"Unsupported Value. Can't convert {type(value)} to Request Parameter")
    return dict(parameters)


@dataclass(slots=True, eq=False, weakref_slot=True)
class InferenceResponse:
    """One answer of a model: outputs, or an error."""

    model: "Model"
    """The model and the version that answered."""
    request_id: str | None = None
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    error: RepoAgentError | None = None
    classification_label: str | None = None
    final: bool = False
    """Nothing comes after this one."""


def make_response(request: "InferenceRequest", response: InferResponse | None, final: bool) -> InferenceResponse:
    """The core's ``response`` to ``request``; None is the empty end of a decoupled answer. Never raises."""
    if response is None:
        return InferenceResponse(request.model, request.request_id, final=final)
    made = InferenceResponse(
        request.model.answering(response.model_version),
        response.id or None,
        response.parameters,
        {name: from_core(tensor) for name, tensor in response.outputs.items()},
        response.error,
        None,
        final,
    )
    if request.output_memory_type is not None:
        _move(made, request.output_memory_type)
    return made


def error_response(request: "InferenceRequest", error: RepoAgentError) -> InferenceResponse:
    """The final response to a request that failed."""
    return InferenceResponse(request.model, request.request_id, error=error, final=True)


def _move(response: InferenceResponse, device: DeviceOrMemoryType) -> None:
    try:
        response.outputs = {name: tensor.to_device(device) for name, tensor in response.outputs.items()}
    except RepoAgentError as error:
        response.error = InvalidArgumentError(f"Memory type {device} not supported: {error}")
