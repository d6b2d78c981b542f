"""Requests and responses as a ``model.py`` sees them, both the ones it is given and the ones it makes (BLS)."""

import json
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Final

from repoagent.errors import RepoAgentError
from repoagent.serving.backends.python.model.calls import AsyncResponseIterator, ResponseIterator
from repoagent.serving.backends.python.model.context import ModelContext, current
from repoagent.serving.backends.python.model.errors import TritonError, TritonModelException, core_error
from repoagent.serving.backends.python.model.tensors import Tensor
from repoagent.serving.requests.request import Asked, InferRequest, InferResponse, ParameterValue

__all__ = ["FINAL", "InferenceRequest", "InferenceResponse", "InferenceResponseSender", "response_of"]

FINAL: Final = 1
RELEASE_ALL: Final = 1
RESCHEDULE: Final = 2
_SEQUENCE_START: Final = 1
_SEQUENCE_END: Final = 2


class InferenceResponse:
    """One answer: tensors, or an error."""

    __slots__ = ("_error", "_parameters", "_tensors")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        self._tensors = _tensors(output_tensors, "output_tensors")
        self.set_error(error)
        self._parameters = _checked(parameters)

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

    def raw_parameters(self) -> dict[str, ParameterValue]:
        """The same as a dictionary; not part of Triton's interface."""
        return self._parameters


class InferenceResponseSender:
    """Where a model sends the responses to one request, from any thread.

    ``wanted``: see :func:`response_of`; ``over`` hears of the final response. A model that is not ``decoupled`` sends
    exactly one response, with the final flag or before it; the server gets it with the flag.
    """

    __slots__ = ("_decoupled", "_held", "_lock", "_open", "_over", "_request", "_sent", "_version", "_wanted")

    def __init__(
        self,
        request: InferRequest,
        version: str,
        wanted: Sequence[str] = (),
        over: "Callable[[InferenceResponseSender], object] | None" = None,
        *,
        decoupled: bool = True,
    ) -> None:
        self._request = request
        self._version = version
        self._wanted = wanted
        self._over = over
        self._decoupled = decoupled
        self._lock = threading.Lock()
        self._open = True
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
            answer = None if response is None else response_of(self._request, self._version, response, self._wanted)
            self._sent = True
            if self._decoupled or (final and answer is not None):
                self._send(answer, final=final)
            elif final:
                self._send(self._held, final=True)
            else:
                self._held = answer

    def _check(self, with_response: bool) -> None:
        """Raise what Triton's sender would."""
        if not self._decoupled and with_response and self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if not self._decoupled and not with_response and not self._sent:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )
        if not self._open:
            raise TritonModelException("Unable to send response. Response sender has been closed.")

    def reschedule(self) -> bool:
        """Have the request executed again, unless it has had its final response; not part of Triton's interface."""
        with self._lock:
            if self._open and self._held is None:
                self._request.rescheduled = True
                self._send(None, final=True)
                return True
            return False

    def fail(self, error: RepoAgentError) -> None:
        """Answer the request with ``error``, unless it has had its final response; not part of Triton's interface.

        A response that waits for its final flag is sent instead.
        """
        with self._lock:
            if self._open:
                answer = InferResponse(self._request.model_name, self._version, id=self._request.asked.id, error=error)
                self._send(self._held or answer, final=True)

    def _send(self, answer: InferResponse | None, *, final: bool) -> None:
        if final:
            self._open = False
            self._held = None
            if self._over is not None:
                self._over(self)
        self._request.send(answer, final)

    def is_cancelled(self) -> bool:
        return self._request.cancelled

    @property
    def open(self) -> bool:
        """Whether the final response is still to come."""
        return self._open


class InferenceRequest:
    """A request: one that the server hands to ``execute``, or one that the model makes of another model."""

    context: ClassVar[ModelContext | None] = None
    """The model whose class this is; the class that a model sees is a subclass with its own."""

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] = (),
        requested_output_names: Sequence[str] = (),
        model_name: str = "",
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Any = None,
        trace: Any = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        self._core = InferRequest(
            Asked(
                model_name,
                {tensor.name(): tensor.unwrap() for tensor in _tensors(inputs, "inputs")},
                str(model_version) if model_version > 0 else "",
                requested_outputs=tuple(requested_output_names),
                id=request_id,
                parameters=_checked(parameters),
                correlation_id=correlation_id,
                timeout_us=timeout,
            )
        )
        self._flags = flags
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._shared = False
        self._wanted: Sequence[str] = self._core.requested_outputs
        self._sender: InferenceResponseSender | None = None
        self._sender_taken = False
        self._rescheduled = False

    @classmethod
    def wrap(
        cls,
        core: InferRequest,
        version: str,
        outputs: Sequence[str] = (),
        over: Callable[[InferenceResponseSender], object] | None = None,
        *,
        shared: bool = False,
        decoupled: bool = True,
    ) -> "InferenceRequest":
        """The view of a request that the server hands over to a model with these ``outputs``.

        ``shared``: its inputs are others' as well, and can only be read.
        """
        request = cls.__new__(cls)
        request._core = core
        request._flags = _SEQUENCE_START * core.asked.sequence_start | _SEQUENCE_END * core.asked.sequence_end
        request._preferred_memory = None
        request._trace = None
        request._shared = shared
        request._wanted = core.requested_outputs or outputs
        request._sender_taken = False
        request._rescheduled = False
        request._sender = InferenceResponseSender(core, version, request._wanted, over, decoupled=decoupled)
        return request

    def inputs(self) -> list[Tensor]:
        return [Tensor.wrap(name, tensor, shared=self._shared) for name, tensor in self._core.inputs.items()]

    def request_id(self) -> str:
        return self._core.asked.id

    def correlation_id(self) -> int | str:
        return self._core.asked.correlation_id

    def model_name(self) -> str:
        return self._core.model_name

    def requested_output_names(self) -> list[str]:
        """The outputs that the client wants: all of the model's, if it named none."""
        return list(self._wanted)

    def parameters(self) -> str:
        """The request's parameters as JSON text."""
        return json.dumps(dict(self._core.asked.parameters), separators=(",", ":"))

    def preferred_memory(self) -> Any:
        return self._preferred_memory

    def trace(self) -> Any:
        return self._trace

    def priority(self) -> int:
        return self._core.asked.priority

    def timeout(self) -> int:
        """Microseconds that the client gave the request; 0 for none."""
        return self._core.asked.timeout_us

    def flags(self) -> int:
        return self._flags & (_SEQUENCE_START | _SEQUENCE_END)

    def set_flags(self, flags: int) -> None:
        self._flags = flags

    def is_cancelled(self) -> bool:
        return self._core.cancelled

    def get_response_sender(self) -> InferenceResponseSender:
        """Where the responses go.

        Raises:
            TritonModelException: the model itself made this request.
        """
        if self._sender is None:
            raise TritonModelException("get_response_sender is only for requests that the server hands to execute")
        self._sender_taken = True
        return self._sender

    def set_release_flags(self, flags: int) -> None:
        """With ``TRITONSERVER_REQUEST_RELEASE_RESCHEDULE`` the request is executed again when ``execute`` has returned.

        Raises:
            TritonModelException: there are no such flags.
        """
        if flags not in (RELEASE_ALL, RESCHEDULE):
            raise TritonModelException(
                "Invalid request release flag, must be TRITONSERVER_REQUEST_RELEASE_ALL or "
                f"TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, not {flags}"
            )
        self._rescheduled = flags == RESCHEDULE

    @property
    def rescheduled(self) -> bool:
        """Whether the model wants to execute it again; not part of Triton's interface."""
        return self._rescheduled

    def own_sender(self) -> tuple[InferenceResponseSender, bool]:
        """The sender of a request that the server handed over, and whether the model has asked for it too.

        Not part of Triton's interface.
        """
        assert self._sender is not None
        return self._sender, self._sender_taken

    def exec(self, decoupled: bool = False) -> "InferenceResponse | ResponseIterator[InferenceResponse]":
        """Run this request on its model and wait; with ``decoupled`` an iterator over the responses.

        It can be run again, also before it has been answered.
        """
        responses = ResponseIterator(self._owner().core, self._execution(), _from_core)
        return responses if decoupled else self._only(responses.rest())

    def async_exec(
        self, decoupled: bool = False
    ) -> "Awaitable[InferenceResponse | AsyncResponseIterator[InferenceResponse]]":
        """As :meth:`exec`, without blocking the event loop: it is submitted at once, and answered when awaited.

        With ``decoupled`` the wait ends with the first response.
        """
        import asyncio

        responses = AsyncResponseIterator(self._owner().core, self._execution(), _from_core)
        return asyncio.ensure_future(self._awaited(responses, decoupled))

    async def _awaited(
        self, responses: AsyncResponseIterator["InferenceResponse"], decoupled: bool
    ) -> "InferenceResponse | AsyncResponseIterator[InferenceResponse]":
        if not decoupled:
            return self._only(await responses.arest())
        await responses.first()
        return responses

    def _execution(self) -> InferRequest:
        """One more execution of what this asks."""
        core = self._core
        return InferRequest(
            replace(
                core.asked,
                inputs=core.inputs,
                requested_outputs=core.requested_outputs,
                sequence_start=bool(self._flags & _SEQUENCE_START),
                sequence_end=bool(self._flags & _SEQUENCE_END),
            )
        )

    def _owner(self) -> ModelContext:
        return self.context or current()

    def _only(self, responses: list[InferenceResponse]) -> InferenceResponse:
        if len(responses) != 1:
            raise TritonModelException(
                f"model '{self._core.model_name}' sent {len(responses)} responses; call exec(decoupled=True)"
            )
        return responses[0]


def _tensors(given: Sequence[Tensor], what: str) -> list[Tensor]:
    for item in given:
        if not isinstance(item, Tensor):
            raise TypeError(f"{what} must be a list of pb_utils.Tensor, found {type(item).__name__}")
    return list(given)


def _checked(parameters: Mapping[str, ParameterValue] | None) -> dict[str, ParameterValue]:
    """The parameters that a model gives; what clients and other kinds of models give may have floats besides."""
    for name, value in (parameters or {}).items():
        if not isinstance(name, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(name)}")
        if not isinstance(value, bool | int | str):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters or {})


def _from_core(response: InferResponse | None) -> InferenceResponse:
    """A response of another model; the empty end of its responses is one without tensors."""
    if response is None:
        return InferenceResponse()
    error = TritonError(response.error.message, response.error.code) if response.error is not None else None
    tensors = [Tensor.wrap(name, tensor) for name, tensor in response.outputs.items()]
    return InferenceResponse.wrap(tensors, error, response.parameters)


def response_of(
    request: InferRequest, version: str, response: InferenceResponse, wanted: Sequence[str] = ()
) -> InferResponse:
    """The core's form of what a model answered; only the outputs that are ``wanted``, or all if none is named."""
    answer = InferResponse(request.model_name, version, id=request.asked.id, parameters=response.raw_parameters())
    error = response.error()
    if error is not None:
        answer.error = core_error(error)
        return answer
    outputs = response.output_tensors()
    answer.outputs = {t.name(): t.unwrap() for t in outputs if not wanted or t.name() in wanted}
    return answer
