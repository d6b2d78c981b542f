"""One request on its way through an ensemble.

Everything that happens to it (an answer of a member, the end of a member's answers) is an event. Events are put into a
line, and whichever thread finds nobody working on the line works it off: so no thread waits for a step, no lock is
held while a member runs, and members that answer at once do not nest in each other's stack frames.
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from repoagent.errors import (
    AlreadyExistsError,
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RepoAgentError,
    UnavailableError,
    UnknownError,
    UnsupportedError,
)
from repoagent.serving.ensembles.plan import EnsemblePlan, Step
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.tensor import Tensor

__all__ = ["Durations", "EnsembleRun", "RunOutcome", "StepRequest"]


@dataclass(slots=True)
class Durations:
    """Nanoseconds that the members of one request spent, added up."""

    queue_ns: int = 0
    input_ns: int = 0
    infer_ns: int = 0
    output_ns: int = 0

    def add(self, other: "Durations") -> None:
        """Add those of one step."""
        self.queue_ns += other.queue_ns
        self.input_ns += other.input_ns
        self.infer_ns += other.infer_ns
        self.output_ns += other.output_ns

    @classmethod
    def of(cls, request: InferRequest) -> "Durations":
        """Those of a request that was answered; zero if it was not executed."""
        if isinstance(request, StepRequest) and request.composed is not None:
            return request.composed
        times = request.times
        if times is None:
            return cls()
        return cls(
            times.start_ns - request.arrival_ns,
            times.input_end_ns - times.start_ns,
            times.output_start_ns - times.input_end_ns,
            times.end_ns - times.output_start_ns,
        )


class StepRequest(InferRequest):
    """A request to a member. It is cancelled as soon as the ensemble's own request is, or another step failed."""

    __slots__ = ("_own_cancelled", "_run", "composed")

    def __init__(self, run: "EnsembleRun", step: Step, inputs: dict[str, Tensor], sender: "_StepSender") -> None:
        origin = run.request
        self._run = run
        self.composed: Durations | None = None
        """Set by a member that is an ensemble itself."""
        super().__init__(
            step.model_name,
            inputs,
            sender,
            model_version=step.model_version,
            id=origin.id,
            requested_outputs=tuple(step.outputs),
            parameters=origin.parameters,
            correlation_id=origin.correlation_id,
            sequence_start=origin.sequence_start,
            sequence_end=origin.sequence_end,
            priority=origin.priority,
            timeout_us=_time_left_us(origin),
            trace=origin.trace.child() if origin.trace is not None else None,
            volatile=origin.volatile,
        )

    @property
    def cancelled(self) -> bool:
        """See :class:`InferRequest`."""
        return self._own_cancelled or self._run.stopped

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self._own_cancelled = value


def _time_left_us(request: InferRequest) -> int:
    if not request.timeout_us:
        return 0
    passed_us = (time.monotonic_ns() - request.arrival_ns) // 1000
    return max(1, request.timeout_us - passed_us)


@dataclass(slots=True)
class _Scope:
    """The tensors of one stream's one item: the request's own, or those of one answer of a decoupled member."""

    label: int
    missing: dict[int, int]
    """Step -> how many of the tensors that it waits for are not there yet."""
    tensors: dict[str, Tensor] = field(default_factory=dict)


class _StepSender:
    """Turns the answers of a member into events of the run."""

    __slots__ = ("_run", "_scope", "_step", "request")

    def __init__(self, run: "EnsembleRun", step: Step, scope: _Scope) -> None:
        self._run = run
        self._step = step
        self._scope = scope
        self.request: InferRequest | None = None

    def send(self, response: InferResponse | None, final: bool) -> None:
        self._run.post(_Event(self._step, self._scope, response, self.request if final else None))


@dataclass(frozen=True, slots=True)
class _Event:
    step: Step
    scope: _Scope
    response: InferResponse | None
    ended: InferRequest | None
    """The step's request, with its times, if no further answer follows."""


@dataclass(frozen=True, slots=True)
class RunOutcome:
    """How a request through an ensemble ended."""

    error: RepoAgentError | None
    durations: Durations


_UNSET: Final = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"
_KINDS: Final = (
    UnknownError,
    InternalError,
    NotFoundError,
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
    AlreadyExistsError,
    CancelledError,
)


class EnsembleRun:
    """Executes one request by ``plan``. ``submit`` takes requests to members; ``done`` hears of the end, once.

    The answers, errors too, go to the request's sender.
    """

    def __init__(
        self,
        plan: EnsemblePlan,
        request: InferRequest,
        version: str,
        submit: Callable[[InferRequest], None],
        done: Callable[[RunOutcome], None],
    ) -> None:
        self.request = request
        self._plan = plan
        self._version = version
        self._submit = submit
        self._done = done
        self._wanted = request.requested_outputs or tuple(sorted(plan.outputs))
        self._needed = plan.needed(self._wanted) if request.requested_outputs else None
        self._lock = threading.Lock()
        self._events: deque[_Event] = deque()
        self._working = False
        # What follows is touched only by the thread that works off the line.
        self._in_flight: dict[InferRequest, None] = {}
        self._error: RepoAgentError | None = None
        self._incomplete = 0
        self._durations = Durations()
        self._origin = self._new_scope(0)

    @property
    def stopped(self) -> bool:
        """Nobody wants the result any more."""
        return self._error is not None or self.request.cancelled

    def start(self) -> None:
        """Begin. Returns when nothing can be done on this thread without waiting."""
        self.request.on_cancel = self._tell_steps
        self._working = True
        absent = self._plan.inputs - self.request.inputs.keys()  # Optional ones; the request has been checked.
        self._put(self._origin, self.request.inputs, absent)
        if self._in_flight:
            self._work()
        else:
            self._finish()

    def post(self, event: _Event) -> None:
        """Take note of ``event``, from any thread."""
        with self._lock:
            self._events.append(event)
            if self._working:
                return
            self._working = True
        self._work()

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._events:
                    self._working = False
                    return
                event = self._events.popleft()
            self._handle(event)
            if event.ended is not None:
                del self._in_flight[event.ended]
                self._durations.add(Durations.of(event.ended))
                if not self._in_flight:
                    self._finish()

    def _handle(self, event: _Event) -> None:
        response = event.response
        if response is not None and response.error is not None:
            self._fail(response.error)
        elif self.request.cancelled:
            self._fail(CancelledError("request cancelled"))
        if response is None or self._error is not None:
            return
        step, scope = event.step, event.scope
        if step.decoupled:
            scope = self._new_scope(step.output_label)
        tensors = {step.outputs[name]: tensor for name, tensor in response.outputs.items() if name in step.outputs}
        self._put(scope, tensors)

    def _fail(self, error: RepoAgentError) -> None:
        if self._error is None:
            self._error = _named(self._plan.name, error)
            self._tell_steps()

    def _tell_steps(self) -> None:
        """Those that wait need not: this is :attr:`stopped`. Called from any thread."""
        for request in list(self._in_flight):
            request.cancel()

    def _new_scope(self, label: int) -> _Scope:
        needed = self._needed
        steps = [step for step in self._plan.steps if step.label == label and (needed is None or step.index in needed)]
        self._incomplete += label == self._plan.output_label
        return _Scope(label, {step.index: len(step.waits_for) for step in steps})

    def _put(self, scope: _Scope, tensors: Mapping[str, Tensor], absent: frozenset[str] = frozenset()) -> None:
        scope.tensors.update(tensors)
        for step in self._ready(scope, (*tensors, *absent)):
            self._call(step, scope)
        if self._plan.decoupled and scope.label == self._plan.output_label:
            self._answer_if_complete(scope, tensors)

    def _ready(self, scope: _Scope, tensors: Sequence[str]) -> list[Step]:
        ready = []
        for tensor in tensors:
            for step in self._plan.users(tensor):
                if step.index in scope.missing:
                    scope.missing[step.index] -= 1
                    if not scope.missing[step.index]:
                        ready.append(step)
        return ready

    def _call(self, step: Step, scope: _Scope) -> None:
        inputs = {name: scope.tensors[tensor] for name, tensor in step.inputs.items() if tensor in scope.tensors}
        sender = _StepSender(self, step, scope)
        request = sender.request = StepRequest(self, step, inputs, sender)
        self._in_flight[request] = None
        self._submit(request)

    def _answer_if_complete(self, scope: _Scope, news: Mapping[str, Tensor]) -> None:
        complete = all(name in scope.tensors for name in self._wanted)
        if complete and any(name in news for name in self._wanted):
            self._incomplete -= 1
            self._send(self._response(scope), final=False)

    def _response(self, scope: _Scope) -> InferResponse:
        outputs = {name: scope.tensors[name] for name in self._wanted}
        return InferResponse(self._plan.name, self._version, self.request.id, outputs)

    def _finish(self) -> None:
        response = None
        if self._error is None:
            response = self._last_response()
        if self._error is not None:
            response = InferResponse(self._plan.name, self._version, self.request.id, error=self._error)
        self.request.on_cancel = None  # It would keep this run, and all its tensors.
        self._done(RunOutcome(self._error, self._durations))
        self._send(response, final=True)

    def _last_response(self) -> InferResponse | None:
        """The only answer, or None after the answers of a decoupled ensemble. Notes an error if one is incomplete."""
        if self._plan.decoupled and not self._incomplete:
            return None
        if any(name not in self._origin.tensors for name in self._wanted):
            self._fail(InvalidArgumentError(f"[request id: {self.request.id or '<id_unknown>'}] {_UNSET}"))
            return None
        return self._response(self._origin)

    def _send(self, response: InferResponse | None, *, final: bool) -> None:
        if self.request.sender is not None:
            self.request.sender.send(response, final)


def _named(ensemble: str, error: RepoAgentError) -> RepoAgentError:
    """The error of a member with the ensemble's name before it, and the same code."""
    kind = next(kind for kind in _KINDS if kind.code is error.code)
    named = kind(f"in ensemble '{ensemble}', {error}")
    named.__cause__ = error
    return named
