"""What a client wants done with outputs before they are sent; the same for HTTP and gRPC."""

import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.request import InferRequest, InferResponse, OutputClasses
from repoagent.serving.requests.senders import LayerSender
from repoagent.serving.requests.tensor import NUMPY_TYPES, Array, DataType, Tensor
from repoagent_server.handlers.shared_memory import Span

_LENGTH: Final = struct.Struct("<I")


def store(name: str, tensor: Tensor, span: Span) -> None:
    """Write output ``name`` to where the client wants it. An array that is there already is left alone.

    Raises:
        InternalError: it needs more bytes than there are (Triton's text).
        InvalidArgumentError: the client has made the region smaller meanwhile.
    """
    if tensor.data_type is DataType.BYTES:
        elements = [as_bytes(element) for element in tensor.array.ravel().tolist()]
        _check_room(name, span, sum(map(len, elements)) + _LENGTH.size * len(elements))
        _write_elements(elements, span.view())
        return
    dtype = NUMPY_TYPES[tensor.data_type]
    _check_room(name, span, tensor.array.size * dtype.itemsize)
    array, place = tensor.array, np.ndarray(tensor.array.shape, dtype, span.view())
    if array.ctypes.data != place.ctypes.data or array.strides != place.strides:
        _copy(place, array)


def _check_room(name: str, span: Span, needed: int) -> None:
    if needed > span.byte_size:
        raise InternalError(
            f"shared memory size specified with the request for output '{name}' ({span.byte_size} bytes) should be at "
            f"least {needed} bytes to hold the results"
        )


def _copy(place: Array, array: Array) -> None:
    np.copyto(place, array, casting="unsafe")


def _write_elements(elements: list[bytes], target: memoryview) -> None:
    position = 0
    for element in elements:
        _LENGTH.pack_into(target, position, len(element))
        position += _LENGTH.size
        target[position : position + len(element)] = element
        position += len(element)


def as_bytes(element: bytes | str) -> bytes:
    """An element of a tensor of BYTES; models may give text."""
    return element.encode() if isinstance(element, str) else element


@dataclass(slots=True)
class RequestedOutputs:
    """By the output's name; most requests have none."""

    classes: dict[str, int] = field(default_factory=dict)
    """Outputs to be classified, and how many classes are wanted (at least 1)."""
    max_elements: int = field(default=DEFAULT_LIMITS.classes, compare=False)
    """How many values an output that is classified may have."""
    spans: dict[str, Span] = field(default_factory=dict)
    """Outputs that go to shared memory instead of into the response."""

    def attend(self, request: InferRequest) -> None:
        """Have what is wanted done on the thread that answers ``request``, before its answers go on."""
        _OutputsSender(self, request)

    def fulfil(self, response: InferResponse, classes: OutputClasses) -> None:
        """Put classes in the label of outputs, and outputs into shared memory.

        Raises:
            InvalidArgumentError: a type cannot be classified, or a region has become too small.
            InternalError: an output needs more room than the client gave it.
        """
        for name, count in self.classes.items():
            if name in response.outputs:
                self._check_size(name, response.outputs[name].array.size)
                response.outputs[name] = classify(name, response.outputs[name], count, classes)
        for name, span in self.spans.items():
            if name in response.outputs:
                store(name, response.outputs[name], span)

    def _check_size(self, name: str, size: int) -> None:
        if size > self.max_elements:
            raise InvalidArgumentError(
                f"output '{name}' has {size} elements, and at most {self.max_elements} can be classified "
                f"({Limits.flag('classes')})"
            )


class _OutputsSender(LayerSender):
    """Does to the answers to one request what is wanted of its outputs."""

    __slots__ = ("_requested",)

    def __init__(self, requested: RequestedOutputs, request: InferRequest) -> None:
        super().__init__(request)
        self._requested = requested

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None and response.error is None:
            try:
                self._requested.fulfil(response, self._request.classes or OutputClasses(batching=False))
            except RepoAgentError as error:
                response = InferResponse(response.model_name, response.model_version, response.id, error=error)
        super().send(response, final)


_RANKED: Final = frozenset(
    {
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
        DataType.UINT64,
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.INT64,
        DataType.FP32,
        DataType.FP64,
    }
)


def classify(name: str, tensor: Tensor, count: int, classes: OutputClasses) -> Tensor:
    """The ``count`` largest values of output ``name`` (all, if it has fewer), largest first, as text.

    Args:
        name: The output.
        tensor: Its values. Of a batch each item is ranked by itself; the other dimensions count as one.
        count: How many, at least 1.
        classes: Whether the first dimension is a batch, and the labels.

    Returns:
        BYTES of shape [batch, n] or [n], each element ``VALUE:INDEX`` or ``VALUE:INDEX:LABEL``.

    Raises:
        InvalidArgumentError: the type has no order (Triton's text).
    """
    if tensor.data_type not in _RANKED:
        raise InvalidArgumentError(
            f"class result not available for output due to unsupported type '{tensor.data_type.name}'"
        )
    array = tensor.array
    batch = array.shape[:1] if classes.batching and array.ndim and array.shape[0] else ()
    rows = array.reshape(*(batch or (1,)), -1)
    places = _descending(rows)[:, :count]
    texts = np.empty(places.size, np.object_)
    values = np.take_along_axis(rows, places, 1)
    texts[:] = [
        _text(value, place, classes.label(name, place))
        for value, place in zip(values.ravel().tolist(), places.ravel().tolist(), strict=True)
    ]
    return Tensor(DataType.BYTES, texts.reshape(*batch, places.shape[1]))


def _descending(rows: Array) -> Array:
    """The order of each row: largest first, of equal ones the first, NaN last."""
    if rows.dtype.kind == "f":
        rows = np.where(np.isnan(rows), -np.inf, rows)
    # Sorting from the other end keeps equal values in their order. (Negating would not do: unsigned types, INT64's
    # smallest value.)
    last = rows.shape[1] - 1
    order: Array = last - np.argsort(rows[:, ::-1], axis=1, kind="stable")[:, ::-1]
    return order


def _text(value: int | float, place: int, label: bytes) -> bytes:
    number = b"%d" % value if isinstance(value, int) else b"%f" % value
    return b"%b:%d:%b" % (number, place, label) if label else b"%b:%d" % (number, place)
