"""Requests as a ``model.py`` sees them, both the ones it is given and the ones it makes (BLS)."""

import json
from collections.abc import Awaitable, Mapping, Sequence, Set
from dataclasses import replace
from numbers import Integral
from typing import Any, ClassVar, Final

from repoagent.serving.backends.python.model.context import ModelContext, TritonModelException, current, raising_tritons
from repoagent.serving.backends.python.model.response import (
    AsyncResponseIterator,
    InferenceResponse,
    InferenceResponseSender,
    RequestRules,
    ResponseIterator,
    checked_parameters,
    checked_tensors,
    received,
)
from repoagent.serving.backends.python.model.tensors import Tensor
from repoagent.serving.requests.request import Asked, InferRequest, ParameterValue

RELEASE_ALL: Final = 1
RESCHEDULE: Final = 2
_SEQUENCE_START: Final = 1
_SEQUENCE_END: Final = 2


class InferenceRequest:
    """A request: one that the server hands to ``execute``, or one that the model makes of another model."""

    context: ClassVar[ModelContext | None] = None
    """The model whose class this is; the class that a model sees is a subclass with its own."""
    rescheduled = False
    """Whether the model wants to execute it again; not part of Triton's interface."""
    _preferred_memory: Any = None
    _trace: Any = None
    _shared = False
    _sender: InferenceResponseSender | None = None
    _sender_taken = False

    def __init__(
        self,
        request_id: str = "",
        correlation_id: int | str = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Sequence[str] | None = None,
        model_name: str | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: Any = None,
        trace: Any = None,
        parameters: Mapping[str, ParameterValue] | None = None,
    ) -> None:
        """``inputs``, ``requested_output_names`` and ``model_name`` have to be given, by position or name.

        Raises:
            TypeError, TritonModelException: an argument is missing, or wrong; the text names it.
        """
        for name, value, kinds in (
            ("request_id", request_id, str),
            ("correlation_id", correlation_id, Integral | str),
            ("inputs", inputs, Sequence | Set),
            ("requested_output_names", requested_output_names, Sequence | Set),
            ("model_name", model_name, str),
            ("model_version", model_version, Integral),
            ("flags", flags, Integral),
            ("timeout", timeout, Integral),
        ):
            if not isinstance(value, kinds):
                raise TypeError(f"{name} of an InferenceRequest must be given and cannot be {type(value).__name__}")
        assert inputs is not None
        assert requested_output_names is not None
        assert model_name is not None
        self._core = InferRequest(
            Asked(
                model_name,
                {tensor.name(): tensor.unwrap() for tensor in checked_tensors(inputs, "inputs")},
                str(model_version) if model_version > 0 else "",
                requested_outputs=_checked_names(requested_output_names),
                id=request_id,
                parameters=checked_parameters(parameters),
                correlation_id=correlation_id if isinstance(correlation_id, str) else int(correlation_id),
                timeout_us=int(timeout),
            )
        )
        self._flags = int(flags)
        self._preferred_memory = preferred_memory
        self._trace = trace
        self._wanted: Sequence[str] = self._core.requested_outputs

    @classmethod
    def wrap(cls, core: InferRequest, rules: RequestRules) -> "InferenceRequest":
        """The view of a request that the server hands over to a model."""
        request = cls.__new__(cls)
        request._core = core
        request._flags = _SEQUENCE_START * core.asked.sequence_start | _SEQUENCE_END * core.asked.sequence_end
        request._shared = rules.shared
        request._wanted = core.requested_outputs or rules.outputs
        request._sender = InferenceResponseSender(core, rules)
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

    @raising_tritons
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
        self.rescheduled = flags == RESCHEDULE

    def own_sender(self) -> tuple[InferenceResponseSender, bool]:
        """The sender of a request that the server handed over, and whether the model has asked for it too.

        Not part of Triton's interface.
        """
        assert self._sender is not None
        return self._sender, self._sender_taken

    @raising_tritons
    def exec(self, decoupled: bool = False) -> "InferenceResponse | ResponseIterator[InferenceResponse]":
        """Run this request on its model and wait; with ``decoupled`` an iterator over the responses.

        It can be run again, also before it has been answered.
        """
        responses = ResponseIterator(self._owner().core, self._execution(), received)
        return responses if decoupled else self._only(responses.rest())

    @raising_tritons
    def async_exec(
        self, decoupled: bool = False
    ) -> "Awaitable[InferenceResponse | AsyncResponseIterator[InferenceResponse]]":
        """As :meth:`exec`, without blocking the event loop: it is submitted at once, and answered when awaited.

        With ``decoupled`` the wait ends with the first response.
        """
        import asyncio

        responses = AsyncResponseIterator(self._owner().core, self._execution(), received)
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


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input called ``name``, or None."""
    tensor = inference_request._core.inputs.get(name)
    return None if tensor is None else Tensor.wrap(name, tensor, shared=inference_request._shared)


def _checked_names(names: Sequence[str] | Set[str]) -> tuple[str, ...]:
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"requested_output_names must be a list of str, not {names!r}")
    if "" in names:
        raise TritonModelException("a name in requested_output_names should not be empty")
    return tuple(names)
