"""Requests of the Server API, and how they become requests of the serving core."""

import asyncio
import operator
import queue
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from repoagent.errors import InvalidArgumentError
from repoagent.server.enums import RequestFlag
from repoagent.server.inputs import core_input
from repoagent.server.memory import DeviceOrMemoryType
from repoagent.serving.requests.request import DISCARD, Asked, AskedFields, InferRequest, ParameterValue, ResponseSender

if TYPE_CHECKING:
    from repoagent.server.model import Model

__all__ = ["InferenceRequest", "core_request"]

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
