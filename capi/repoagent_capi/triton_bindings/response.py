"""Responses, and how each reaches the future that waits for it."""

import threading
import time
from collections import deque
from typing import Any

from repoagent.errors import AlreadyExistsError, InvalidArgumentError
from repoagent.server.enums import MemoryType
from repoagent.server.tensor import Tensor, from_core
from repoagent.serving.requests.request import InferRequest, InferResponse, OutputClasses
from repoagent.serving.requests.tensor import DataType, ServerEnum
from repoagent_capi.triton_bindings.trace import InferenceTrace, TraceGuard
from repoagent_capi.triton_bindings.values import ParameterType, parameter_type


class ResponseCompleteFlag(ServerEnum):
    """Bits that come with a response."""

    FINAL = 1


class InferenceResponse:
    """One answer. The buffers of its outputs live as long as it does."""

    __slots__ = ("__weakref__", "_classes", "_error", "_held", "_outputs", "_parameters", "id", "model")

    def __init__(self, response: InferResponse, held: object = None, classes: OutputClasses | None = None) -> None:
        """``held`` lives as long as the response; ``classes`` has the labels of its outputs."""
        self._classes = classes
        self._error = response.error
        self._outputs: list[tuple[str, Tensor]] = [(name, from_core(it)) for name, it in response.outputs.items()]
        self._parameters = list(response.parameters.items())
        self._held = held
        self.id = response.id
        self.model = (response.model_name, int(response.model_version or -1))

    def throw_if_response_error(self) -> None:
        """Raise the error that this response is.

        Raises:
            RepoAgentError: it is one.
        """
        if self._error is not None:
            raise self._error

    @property
    def parameter_count(self) -> int:
        """How many parameters the model sent."""
        return len(self._parameters)

    @property
    def output_count(self) -> int:
        """How many outputs there are."""
        return len(self._outputs)

    def parameter(self, index: int) -> tuple[str, ParameterType, Any]:
        """Name, type and value of a parameter.

        Raises:
            InvalidArgumentError: there is none at ``index``.
        """
        name, value = _at(self._parameters, index, "parameter")
        return name, parameter_type(value), value

    def output(self, index: int) -> tuple[str, DataType, tuple[int, ...], int, int, MemoryType, int]:
        """Name, data type, shape, address, size in bytes, kind of memory and number of its device of an output.

        Raises:
            InvalidArgumentError: there is none at ``index``.
        """
        name, tensor = _at(self._outputs, index, "output")
        return (
            name,
            tensor.data_type,
            tuple(tensor.shape),
            tensor.data_ptr,
            tensor.size,
            tensor.memory_type,
            tensor.memory_type_id,
        )

    def output_classification_label(self, index: int, class_index: int) -> str:
        """The label of a class of an output, from its ``label_filename``; empty if it has none.

        Raises:
            InvalidArgumentError: there is no output at ``index``.
        """
        name, _ = _at(self._outputs, index, "output")
        return self._classes.label(name, class_index).decode(errors="surrogateescape") if self._classes else ""


def _at(items: list[tuple[str, Any]], index: int, what: str) -> tuple[str, Any]:
    if not 0 <= index < len(items):
        raise InvalidArgumentError(f"out of bounds index {index}: the response has {len(items)} {what}s")
    return items[index]


_Item = tuple[InferenceResponse | None, int]


class Delivery:
    """Matches responses with the futures that ask for them. Either side may come first."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived: deque[_Item] = deque()
        self._waiting: Any = None

    def next_to(self, future: Any) -> None:
        """Give the next response to ``future``.

        Raises:
            AlreadyExistsError: an earlier future still waits.
        """
        with self._lock:
            if self._waiting is not None:
                raise AlreadyExistsError("cannot call GetNextResponse concurrently")
            if not self._arrived:
                self._waiting = future
                return
            item = self._arrived.popleft()
        _resolve(future, item)

    def put(self, item: _Item) -> None:
        """Hand over one response."""
        with self._lock:
            future, self._waiting = self._waiting, None
            if future is None:
                self._arrived.append(item)
                return
        _resolve(future, item)


def _resolve(future: Any, item: _Item) -> None:
    def settle() -> None:
        if not future.done():
            future.set_result(item)

    if hasattr(future, "get_loop"):
        future.get_loop().call_soon_threadsafe(settle)
    else:
        settle()


class DeliverySender:
    """Takes the core's responses to one request."""

    __slots__ = ("_delivery", "_guard", "_trace", "request")

    def __init__(self, delivery: Delivery, trace: InferenceTrace | None) -> None:
        self.request: InferRequest | None = None
        """The request that is answered; set when it is sure to be submitted."""
        self._delivery = delivery
        self._trace = trace
        self._guard = TraceGuard(trace) if trace is not None else None

    def send(self, response: InferResponse | None, final: bool) -> None:
        """See :class:`~repoagent.serving.requests.request.ResponseSender`."""
        classes = self.request.classes if self.request is not None else None
        made = InferenceResponse(response, self._guard, classes) if response is not None else None
        try:
            if self._trace is not None:
                self._follow(self._trace, response, final)
        finally:
            if final:
                # From now on only the responses keep the trace.
                self._guard = self._trace = self.request = None
            self._delivery.put((made, int(ResponseCompleteFlag.FINAL) if final else 0))

    def _follow(self, trace: InferenceTrace, response: InferResponse | None, final: bool) -> None:
        if response is not None:
            trace.answer(response)
        if final and self.request is not None:
            trace.end(self.request, time.monotonic_ns())
