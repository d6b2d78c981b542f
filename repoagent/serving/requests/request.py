"""A request on its way through the core, and the responses that come back.

A front end makes an :class:`InferRequest`, gives it a sender, and submits it; whatever executes the model answers
through ``request.sender``. One request has one or more responses, the last one marked final, so decoupled models,
streaming and cancellation need no second road.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from repoagent.errors import RepoAgentError
from repoagent.serving.measuring.statistics import ExecutionTimes
from repoagent.serving.requests.class_labels import OutputClasses
from repoagent.serving.requests.tensor import Tensor

__all__ = ["InferRequest", "InferResponse", "OutputPlace", "ParameterValue", "RequestTrace", "ResponseSender"]

ParameterValue = bool | int | float | str


@dataclass(slots=True)
class InferResponse:
    """One answer. With ``error`` set there are no outputs."""

    model_name: str
    model_version: str
    id: str = ""
    outputs: dict[str, Tensor] = field(default_factory=dict)
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    error: RepoAgentError | None = None
    output_start_ns: int = 0
    """When the model began to make its outputs of what it had computed (``time.monotonic_ns``), if it says so."""


class ResponseSender(Protocol):
    """Where the answers to one request go."""

    def send(self, response: InferResponse | None, final: bool) -> None:
        """Take one response; None with ``final`` is an empty end of a decoupled answer.

        Called from any thread, never twice at once for one request, never after ``final``. Must not raise. It returns
        soon, but an ensemble with ``max_inflight_requests`` may hold back who answers more than once.
        """


class RequestTrace(Protocol):
    """Is told what happens to one request, from any thread, never twice at once. Must not raise."""

    def begin(self, request: "InferRequest", version: int, now_ns: int) -> None:
        """That version of the model has accepted the request. Times are ``time.monotonic_ns``."""

    def answer(self, response: InferResponse) -> None:
        """A response is about to be sent."""

    def end(self, request: "InferRequest", now_ns: int) -> None:
        """The final response is about to be sent; ``request.times`` has the moments of its execution, if any."""

    def child(self) -> "RequestTrace":
        """A trace for a request that is made for this one: that of an ensemble to a member."""


class OutputPlace(Protocol):
    """Memory of the caller's for one output."""

    @property
    def byte_size(self) -> int:
        """How many bytes there are."""

    def view(self) -> memoryview:
        """Those bytes, writable.

        Raises:
            InvalidArgumentError: they are not there any more.
        """


@dataclass(slots=True, eq=False)
class InferRequest:
    """What a client asks of a model. The core fills in nothing that the client left out."""

    model_name: str
    inputs: dict[str, Tensor]
    sender: ResponseSender | None = None
    model_version: str = ""
    """A decimal number, or empty for what the version policy prefers."""
    id: str = ""
    requested_outputs: tuple[str, ...] = ()
    """Names of the outputs wanted, empty for all."""
    parameters: dict[str, ParameterValue] = field(default_factory=dict)
    correlation_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_us: int = 0
    cancelled: bool = False
    """Set by :meth:`cancel`; whoever executes looks at it before, and for long work during, the execution."""
    arrival_ns: int = 0
    """``time.monotonic_ns()`` at submission; the core sets it."""
    trace: RequestTrace | None = None
    """Told what happens to the request, from its acceptance by a model to its final answer; then it is None again."""
    trace_context: Mapping[str, str] | None = None
    """The client's headers ``traceparent`` and ``tracestate``, if a tracer asks for them."""
    times: ExecutionTimes | None = None
    """When its execution was where; set before the answer by what executed it, if it was executed."""
    classes: OutputClasses | None = None
    """How its outputs are classified; set by the version that takes it."""
    refuses_decoupled: str = ""
    """Why a decoupled model cannot answer it, whatever it would answer; empty if it can."""
    output_places: Mapping[str, OutputPlace] | None = None
    """Where the caller wants outputs. Who executes may make them there; the others the caller puts there himself."""
    volatile: bool = False
    """The inputs lie in memory that the client can change meanwhile: what is remembered of them must be a copy."""
    rescheduled: bool = False
    """Set, before its empty end, by a model that wants to execute it again: see :class:`IterativeScheduler`."""
    placeholder: bool = False
    """Fills an empty slot of a sequence batch: nobody waits for its answer and it is not counted."""
    on_cancel: Callable[[], None] | None = None
    """Called by :meth:`cancel`. Who lets the request wait sets it, before a last look at ``cancelled``, in order to
    answer it at once; it is called from any thread, perhaps long after the wait, and must return soon."""

    def cancel(self) -> None:
        """Give the request up. It still gets exactly one final response (usually a CancelledError)."""
        self.cancelled = True
        if (on_cancel := self.on_cancel) is not None:
            on_cancel()
