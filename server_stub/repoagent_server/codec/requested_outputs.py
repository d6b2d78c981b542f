"""What a client wants done with outputs before they are sent; the same for HTTP and gRPC."""

import struct
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.requests.request import InferRequest, InferResponse, OutputClasses
from repoagent.serving.requests.senders import LayerSender
from repoagent.serving.requests.tensor import Array, DataType, Tensor
from repoagent_server.codec.datatypes import BY_TYPE
from repoagent_server.handlers.classification import classify
from repoagent_server.handlers.shared_memory import Span

__all__ = ["RequestedOutputs", "store"]


_LENGTH: Final = struct.Struct("<I")


def store(name: str, tensor: Tensor, span: Span) -> None:
    """Write output ``name`` to where the client wants it. An array that is there already is left alone.

    Raises:
        InternalError: it needs more bytes than there are (Triton's text).
        InvalidArgumentError: the client has made the region smaller meanwhile.
    """
    if tensor.data_type is DataType.BYTES:
        elements = [_as_bytes(element) for element in tensor.array.ravel().tolist()]
        _check_room(name, span, sum(map(len, elements)) + _LENGTH.size * len(elements))
        _write_elements(elements, span.view())
        return
    info = BY_TYPE[tensor.data_type]
    _check_room(name, span, tensor.array.size * info.size)
    _write_numbers(tensor.array, np.ndarray(tensor.array.shape, info.dtype, span.view()))


def _check_room(name: str, span: Span, needed: int) -> None:
    if needed > span.byte_size:
        raise InternalError(
            f"shared memory size specified with the request for output '{name}' ({span.byte_size} bytes) should be at "
            f"least {needed} bytes to hold the results"
        )


def _write_numbers(array: Array, label: Array) -> None:
    there_already = array.ctypes.data == label.ctypes.data and array.strides == label.strides
    if not there_already:
        _copy(label, array)


def _copy(label: Array, array: Array) -> None:
    np.copyto(label, array, casting="unsafe")


def _write_elements(elements: list[bytes], target: memoryview) -> None:
    position = 0
    for element in elements:
        _LENGTH.pack_into(target, position, len(element))
        position += _LENGTH.size
        target[position : position + len(element)] = element
        position += len(element)


def _as_bytes(element: bytes | str) -> bytes:
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
        """Have what is wanted done on the thread that answers ``request``, before its answers go on.

        What executes the request may put outputs into their places by itself.
        """
        request.output_places = self.spans
        if self.classes or self.spans:
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
