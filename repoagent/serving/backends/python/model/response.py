"""Responses as a ``model.py`` makes and sees them, to and from those of the core, and waiting for those of others."""

import json
import threading
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Final, Generic, TypeVar

from repoagent.errors import RepoAgentError
from repoagent.serving.backends.python.model.context import (
    CoreAccess,
    TritonError,
    TritonModelException,
    core_error,
    raising_tritons,
)
from repoagent.serving.backends.python.model.tensors import Tensor
from repoagent.serving.requests.request import InferRequest, InferResponse, ParameterValue

T = TypeVar("T")


class ResponseIterator(Generic[T]):
    """The responses to ``request``, whose sender this becomes, each of them through ``convert``.

    They come from any thread; one thread iterates. The empty end of a decoupled model's responses is one of them, as
    under Triton. Once all have come, they can be iterated over again. Making it submits the request.
    """

    def __init__(self, core: CoreAccess, request: InferRequest, convert: Callable[[InferResponse | None], T]) -> None:
        self._core = core
        self._request = request
        self._convert = convert
        self._items: SimpleQueue[tuple[InferResponse | None, bool]] = SimpleQueue()
        self._seen: list[T] = []
        self._again = 0
        """How many of those that were seen have been iterated over again."""
        self._ended = False
        request.redirect(self)
        core.submit(request)

    def send(self, response: InferResponse | None, final: bool) -> None:
        self._items.put((response, final))

    def __iter__(self) -> "ResponseIterator[T]":
        if self._ended and self._again >= len(self._seen):
            self._again = 0
        return self

    def __next__(self) -> T:
        if self._ended:
            return self._next_again()
        return self._take(*self._items.get())

    def _take(self, response: InferResponse | None, final: bool) -> T:
        self._seen.append(self._convert(response))
        if final:
            self._ended = True
            self._again = len(self._seen)
        return self._seen[-1]

    def _next_again(self) -> T:
        if self._again >= len(self._seen):
            raise StopIteration
        self._again += 1
        return self._seen[self._again - 1]

    def rest(self) -> list[T]:
        """All that come, but not an empty end."""
        found: list[T] = []
        while not self._ended:
            response, self._ended = self._items.get()
            found += [] if response is None else [self._convert(response)]
        return found

    @raising_tritons
    def cancel(self) -> None:
        """Give the request up. It still gets a final response, unless it already had one."""
        self._core.cancel(self._request)


class AsyncResponseIterator(ResponseIterator[T]):
    """The same for a coroutine on the running event loop, which may also use a plain ``for``, as under Triton."""

    def __init__(self, core: CoreAccess, request: InferRequest, convert: Callable[[InferResponse | None], T]) -> None:
        import asyncio  # Most models never do this, and it takes a while.

        self._loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._arrived = asyncio.Event()
        super().__init__(core, request, convert)

    def send(self, response: InferResponse | None, final: bool) -> None:
        super().send(response, final)
        with suppress(RuntimeError):  # The loop has been closed: no one waits there any more.
            self._loop.call_soon_threadsafe(self._arrived.set)

    async def first(self) -> None:
        """Wait until a response is there to be iterated over."""
        while self._items.empty():
            await self._another()

    async def arest(self) -> list[T]:
        """As :meth:`rest`."""
        found: list[T] = []
        while not self._ended:
            await self.first()
            response, self._ended = self._items.get()
            found += [] if response is None else [self._convert(response)]
        return found

    def __aiter__(self) -> "AsyncResponseIterator[T]":
        self.__iter__()
        return self

    async def __anext__(self) -> T:
        try:
            if self._ended:
                return self._next_again()
        except StopIteration:
            raise StopAsyncIteration from None
        await self.first()
        return self._take(*self._items.get())

    async def _another(self) -> None:
        await self._arrived.wait()
        self._arrived.clear()


FINAL: Final = 1
_INT64: Final = 1 << 63


class InferenceResponse:
    """One answer: tensors, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        self._tensors = checked_tensors(output_tensors, "output_tensors")
        self._error: TritonError | None = None
        if error is not None:
            self.set_error(error)
        self._parameters = {} if parameters is None else checked_parameters(parameters)

    @classmethod
    def wrap(
        cls, tensors: list[Tensor], error: TritonError | None, parameters: dict[str, ParameterValue]
    ) -> "InferenceResponse":
        """What another model answered, whatever its parameters are; not part of Triton's interface."""
        response = cls(tensors, error)
        response._parameters = parameters
        return response

    def output_tensors(self) -> list[Tensor]:
        return self._tensors

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def set_error(self, error: TritonError | None) -> None:
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"error must be a pb_utils.TritonError or None, not {type(error).__name__}")
        self._error = error

    def parameters(self) -> str:
        """The response's parameters as JSON text."""
        return json.dumps(self._parameters, separators=(",", ":"))


def checked_tensors(given: Sequence[Tensor], what: str) -> list[Tensor]:
    """A list of tensors that a model gives as ``what``; raises ``TypeError`` for anything else in it, and
    ``TritonModelException`` for None."""
    if not isinstance(given, Sequence | Set):
        raise TypeError(f"{what} must be a list of pb_utils.Tensor, found {type(given).__name__}")
    for item in given:
        if item is None:
            raise TritonModelException(f"a tensor in {what} should not be empty: it is None")
        if not isinstance(item, Tensor):
            raise TypeError(f"{what} must be a list of pb_utils.Tensor, found {type(item).__name__}")
    return list(given)


def checked_parameters(parameters: Mapping[str, ParameterValue] | None) -> dict[str, ParameterValue]:
    """The parameters that a model gives; those of clients and of other kinds of models may be floats, too. Raises
    ``TritonModelException`` for no mapping, or a name or value of another type."""
    if not isinstance(parameters, Mapping | None):
        raise TritonModelException(f"Expect a dict of parameters, got {type(parameters)}")
    for name, value in (parameters or {}).items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if not isinstance(value, bool | int | str):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
        if isinstance(value, int) and not -_INT64 <= value < _INT64:
            raise TritonModelException(f"parameter '{name}' has a number that does not fit into 64 bits")
    return dict(parameters or {})


def received(response: InferResponse | None) -> InferenceResponse:
    """A response of another model; the empty end of its responses is one without tensors."""
    if response is None:
        return InferenceResponse()
    error = TritonError(response.error.message, response.error.code) if response.error is not None else None
    tensors = [Tensor.wrap(name, tensor) for name, tensor in response.outputs.items()]
    return InferenceResponse.wrap(tensors, error, response.parameters)


@dataclass(frozen=True, slots=True, eq=False)
class RequestRules:
    """What holds for all requests that the server hands over to one instance of a model."""

    version: str
    outputs: Sequence[str]
    """Those of the configuration: what else the model answers is left out."""
    decoupled: bool
    shared: bool
    """Inputs are others' as well, and can only be read."""
    unanswered: "set[InferenceResponseSender]" = field(default_factory=set)
    """Of the requests that the model answers through their senders, those whose final response is still to come."""


class InferenceResponseSender:
    """Where a model sends the responses to one request, from any thread.

    A model that is not decoupled sends exactly one response, with the final flag or before it; the server gets it with
    the flag.
    """

    __slots__ = ("_held", "_lock", "_request", "_rules", "_sent", "open")

    def __init__(self, request: InferRequest, rules: RequestRules) -> None:
        self._request = request
        self._rules = rules
        self._lock = threading.Lock()
        self.open = True
        """Whether the final response is still to come."""
        self._sent = False
        self._held: InferResponse | None = None
        """The one response of a model that is not decoupled, which has still to send the final flag."""

    def send(self, response: InferenceResponse | None = None, flags: int = 0) -> None:
        """Send one response; with ``TRITONSERVER_RESPONSE_COMPLETE_FINAL`` it is the last, and may be None.

        Raises:
            TritonModelException: neither a response nor the final flag was given, or the last one has gone.
        """
        if flags not in (0, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags != FINAL:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"response must be an InferenceResponse or None, not {type(response).__name__}")
        final = flags == FINAL
        with self._lock:
            self._check(response is not None)
            answer = None if response is None else self._answer(response)
            self._sent = True
            if self._rules.decoupled or (final and answer is not None):
                self._send(answer, final=final)
            elif final:
                self._send(self._held, final=True)
            else:
                self._held = answer

    def _check(self, with_response: bool) -> None:
        """Raise what Triton's sender would."""
        if not self._rules.decoupled and with_response and self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if not self._rules.decoupled and not with_response and not self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )
        if not self.open:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def _answer(self, response: InferenceResponse) -> InferResponse:
        """The core's form of what the model answered, with the outputs that are wanted."""
        request = self._request
        answer = InferResponse(
            request.model_name, self._rules.version, id=request.asked.id, parameters=response._parameters
        )
        if response._error is not None:
            answer.error = core_error(response._error)
            return answer
        wanted = request.requested_outputs or self._rules.outputs
        for tensor in response._tensors:
            name = tensor.name()
            if not wanted or name in wanted:
                answer.outputs[name] = tensor.unwrap()
        return answer

    def reschedule(self) -> bool:
        """Have the request executed again, unless it has had its final response; not part of Triton's interface."""
        with self._lock:
            if self.open and self._held is None:
                self._request.rescheduled = True
                self._send(None, final=True)
                return True
            return False

    def fail(self, error: RepoAgentError) -> None:
        """Answer the request with ``error``, unless it has had its final response; not part of Triton's interface.

        A response that waits for its final flag is sent instead.
        """
        with self._lock:
            if self.open:
                request = self._request
                answer = InferResponse(request.model_name, self._rules.version, id=request.asked.id, error=error)
                self._send(self._held or answer, final=True)

    def _send(self, answer: InferResponse | None, *, final: bool) -> None:
        if final:
            self.open = False
            self._held = None
            self._rules.unanswered.discard(self)
        self._request.send(answer, final)

    @raising_tritons
    def is_cancelled(self) -> bool:
        return self._request.cancelled
