"""One request on its way through an ensemble.

Everything that happens to it (an answer of a member, the end of a member's answers) is an event. Events are put into a
line, and whichever thread finds none working on the queue works it off: so no thread waits for a step, no lock is
held while a member runs, and members that answer at once do not nest in each other's stack frames.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from repoagent.errors import CancelledError, InvalidArgumentError, RepoAgentError, UnavailableError, error_of
from repoagent.serving.ensembles.plan import EnsemblePlan, Step
from repoagent.serving.ensembles.step_request import SequenceMarks, StepLimiter, StepRequest
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.measuring.statistics import Durations, FailureReason
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.scheduler import Scheduler

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Scope:
    """The tensors of one stream's one item: the request's own, or those of one answer of a decoupled member."""

    label: int
    missing: dict[int, int]
    """Step -> how many of the tensors that it waits for are not there yet."""
    tensors: dict[str, Tensor] = field(default_factory=dict)
    absent: set[str] = field(default_factory=set)
    """Those that are not going to come: the client, or the answer of a step, left them out."""
    marks: dict[str, SequenceMarks] = field(default_factory=dict)
    """Of the tensors that steps made: the sequence that they belong to."""


_Event = tuple[StepRequest, InferResponse | None, bool]
"""A request to a member, an answer to it, and whether no further one follows: then the request has its times."""


class _StepSender:
    """Turns the answers of a member into events of the run."""

    __slots__ = ("request",)

    request: StepRequest

    def send(self, response: InferResponse | None, final: bool) -> None:
        request = self.request
        request.run.post((request, response, final))
        if not final and request.step.decoupled:
            request.run.hold_back(request.step)


_PATIENCE_SECONDS: Final = 300
_UNSET: Final = "unexpected deadlock, at least one output is not set while no more ensemble steps can be made"


class EnsembleRun:
    """Executes one request to ``ensemble``. The answers, errors too, go to the request's sender."""

    def __init__(self, ensemble: "EnsembleScheduler", request: InferRequest) -> None:
        self.request = request
        self._ensemble = ensemble
        self._limiters = ensemble.limiters
        self._plan = plan = ensemble.plan
        self._wanted = request.requested_outputs or tuple(sorted(plan.outputs))
        self._needed = plan.needed(self._wanted) if request.requested_outputs else None
        self._own_marks = SequenceMarks.of(request)
        self._lock = threading.Lock()
        self._events: deque[_Event] = deque()
        self._working = False
        self._worker = 0
        """The thread that works off the queue, if any does."""
        self._in_line = 0
        """How many requests to members stand in line for a place."""
        self._calm = threading.Condition(self._lock)
        # What follows is touched only by the thread that works off the queue.
        self._in_flight: dict[StepRequest, None] = {}
        self._error: RepoAgentError | None = None
        self._incomplete = 0
        self._answer: InferResponse | None = None
        """Of the event that is handled: sent after it, because the last answer carries the final flag."""
        self._durations = Durations()
        self._origin = self._new_scope(0)

    @property
    def stopped(self) -> bool:
        """No one wants the result any more."""
        return self._error is not None or self.request.cancelled

    def start(self) -> None:
        """Begin. Returns when nothing can be done on this thread without waiting."""
        self.request.on_cancel = self._tell_steps
        self.request.on_behind = self._hold_steps
        self._working, self._worker = True, threading.get_ident()
        absent = self._plan.inputs - self.request.inputs.keys()  # Optional ones; the request has been checked.
        reshaper = self._plan.reshaper
        inputs = reshaper.to_model(self.request.inputs) if reshaper is not None else self.request.inputs
        self._put(self._origin, inputs, absent, None)
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
            self._working, self._worker = True, threading.get_ident()
        self._work()

    def hold_back(self, step: Step) -> None:
        """Have the member of a decoupled ``step``, which has just answered, wait while its answers cannot go on."""
        if not self._limiters:
            return
        with self._calm:
            if self._worker == threading.get_ident():
                return  # The member answers while this run calls it: what follows can only begin when it returns.
            if not self._calm.wait_for(lambda: self.stopped or not (self._events or self._in_line), _PATIENCE_SECONDS):
                logger.error(
                    "ensemble '%s': the answers of model '%s' have waited for %d s for a place at the next step; it "
                    "goes on, in case they wait for each other",
                    self._plan.name,
                    step.model_name,
                    _PATIENCE_SECONDS,
                )

    def _work(self) -> None:
        while True:
            with self._lock:
                if not self._events:
                    self._working, self._worker = False, 0
                    self._calm.notify_all()
                    return
                request, response, final = self._events.popleft()
            self._handle(request, response)
            if final:
                del self._in_flight[request]
                if request.inside:
                    self._limiters[request.step.index].leave()
                self._durations = self._durations.plus(request.spent)
                if not self._in_flight:
                    self._finish()
            self._send_answer()

    def _handle(self, request: StepRequest, response: InferResponse | None) -> None:
        if response is not None and response.error is not None:
            self._fail(response.error)
        elif self.request.cancelled:
            self._fail(CancelledError("request cancelled"))
        if response is None or self._error is not None:
            return
        step, scope = request.step, request.scope
        if step.decoupled:
            scope = self._new_scope(step.output_label)
        tensors = {step.outputs[name]: tensor for name, tensor in response.outputs.items() if name in step.outputs}
        # What the member left out may be optional further on, which each of the following steps checks for itself.
        absent = frozenset(step.outputs.values()) - tensors.keys()
        try:
            self._put(scope, tensors, absent, request.marks.after(response.parameters))
        except RepoAgentError as error:
            self._fail(error)

    def _fail(self, error: RepoAgentError) -> None:
        if self._error is None:
            self._error = _named(self._plan.name, error)
            self._tell_steps()

    def _tell_steps(self) -> None:
        """Those that wait need not: this is :attr:`stopped`. Called from any thread."""
        for request in list(self._in_flight):
            request.cancel()
        with self._calm:
            self._calm.notify_all()

    def _hold_steps(self, behind: bool) -> None:
        """Those that follow see for themselves whether the client is behind. Called from any thread."""
        for request in list(self._in_flight):
            request.fall_behind(behind)

    def _new_scope(self, label: int) -> Scope:
        needed = self._needed
        steps = [step for step in self._plan.steps if step.label == label and (needed is None or step.index in needed)]
        self._incomplete += label == self._plan.output_label
        return Scope(label, {step.index: len(step.waits_for) for step in steps})

    def _put(
        self, scope: Scope, tensors: Mapping[str, Tensor], absent: frozenset[str], marks: SequenceMarks | None
    ) -> None:
        scope.tensors.update(tensors)
        scope.absent |= absent
        news = (*tensors, *absent)
        if marks is not None:
            scope.marks.update(dict.fromkeys(news, marks))
        for step in self._ready(scope, news):
            self._call(step, scope)
        if self._plan.decoupled and scope.label == self._plan.output_label:
            self._answer_if_complete(scope, news)

    def _ready(self, scope: Scope, tensors: Sequence[str]) -> list[Step]:
        ready = []
        for tensor in tensors:
            for step in self._plan.users(tensor):
                if step.index in scope.missing:
                    scope.missing[step.index] -= 1
                    if not scope.missing[step.index]:
                        ready.append(step)
        return ready

    def _call(self, step: Step, scope: Scope) -> None:
        inputs = {name: scope.tensors[tensor] for name, tensor in step.inputs.items() if tensor in scope.tensors}
        for name, fit in step.fits.items():
            if name in inputs:
                inputs[name] = fit.apply(inputs[name])
        sender = _StepSender()
        request = sender.request = StepRequest(self, step, scope, inputs, self._marks(step, scope), sender)
        self._in_flight[request] = None
        if not self._limiters:
            self._ensemble.submit_step(request)
            return
        with self._lock:
            self._in_line += 1  # Until it is inside: it may be so before this returns.
        self._limiters[step.index].enter(request)

    def left_line(self) -> None:
        """A request to a member stands in line no more."""
        with self._calm:
            self._in_line -= 1
            self._calm.notify_all()

    def _marks(self, step: Step, scope: Scope) -> SequenceMarks:
        """The sequence that a call of ``step`` belongs to."""
        found = dict.fromkeys(scope.marks[tensor] for tensor in step.inputs.values() if tensor in scope.marks)
        found.pop(self._own_marks, None)
        if len(found) > 1:
            logger.error(
                "in ensemble '%s', the answers of different steps name different sequences for model '%s'",
                self._plan.name,
                step.model_name,
            )
        return next(iter(found), self._own_marks)

    def _answer_if_complete(self, scope: Scope, news: Sequence[str]) -> None:
        if self._complete(scope) and any(name in news for name in self._wanted):
            self._incomplete -= 1
            self._answer = self._response(scope)

    def _complete(self, scope: Scope) -> bool:
        return all(name in scope.tensors or name in scope.absent for name in self._wanted)

    def _response(self, scope: Scope) -> InferResponse:
        outputs = {name: scope.tensors[name] for name in self._wanted if name in scope.tensors}
        for name, fit in self._plan.fits.items():
            if name in outputs:
                outputs[name] = fit.apply(outputs[name])
        if self._plan.reshaper is not None:
            outputs = self._plan.reshaper.to_client(outputs)
        marks = next((scope.marks[name] for name in self._wanted if name in scope.marks), self._own_marks)
        return InferResponse(
            self._plan.name, self._ensemble.version, self.request.asked.id, outputs, marks.parameters()
        )

    def _finish(self) -> None:
        response = None
        if self._error is None:
            response = self._last_response()
        if self._error is not None:
            response = InferResponse(self._plan.name, self._ensemble.version, self.request.asked.id, error=self._error)
        if self._error is None and self._answer is not None:
            response, self._answer = self._answer, None
        self._send_answer()
        self.request.on_cancel = self.request.on_behind = None  # They would keep this run, and all its tensors.
        self._ensemble.record(self.request, self._error, self._durations)
        self.request.send(response, True)

    def _last_response(self) -> InferResponse | None:
        """The only answer, or None after the answers of a decoupled ensemble. Notes an error if one is incomplete."""
        if self._plan.decoupled and not self._incomplete:
            return None
        try:
            if self._complete(self._origin):
                return self._response(self._origin)
            raise InvalidArgumentError(f"[request id: {self.request.asked.id or '<id_unknown>'}] {_UNSET}")
        except RepoAgentError as error:
            self._fail(error)
            return None

    def _send_answer(self) -> None:
        """What the event has made, before what comes after it."""
        if self._answer is not None:
            answer, self._answer = self._answer, None
            self.request.send(answer, False)


def _named(ensemble: str, error: RepoAgentError) -> RepoAgentError:
    """The error of a member with the ensemble's name before it, and the same code."""
    named = error_of(error.code, f"in ensemble '{ensemble}', {error}")
    named.__cause__ = error
    return named


class EnsembleScheduler(Scheduler):
    """Runs requests by ``plan``; ``submit_step`` takes those to members. It has no thread and no queue of its own."""

    def __init__(
        self,
        plan: EnsemblePlan,
        version: VersionContext,
        submit_step: Callable[[InferRequest], None],
        *,
        max_inflight: int = 0,
    ) -> None:
        """``max_inflight``: how many requests of a step may be at its member at a time; 0 for any number."""
        super().__init__(plan.name)
        self.plan = plan
        self.version = str(version.version)
        self.submit_step = submit_step
        self.limiters = [StepLimiter(max_inflight, submit_step) for _ in plan.steps] if max_inflight else []
        """Those of the steps, by their indexes, if the ensemble limits them; then they submit."""
        self._statistics = version.statistics
        self._batching = version.batching
        self._closed = False

    def submit(self, request: InferRequest) -> None:
        if request.cancelled or self._closed:
            unloaded = UnavailableError(f"model '{self.plan.name}' is unloaded")
            error = CancelledError("request cancelled") if request.cancelled else unloaded
            self.record(request, error, Durations())
            answer_error(request, error, self.version)
        else:
            EnsembleRun(self, request).start()

    def record(self, request: InferRequest, error: RepoAgentError | None, spent: Durations) -> None:
        """Count ``request``, which ended with ``error`` if there is one; the members ``spent`` so much on it."""
        now = time.monotonic_ns()
        if error is not None:
            reason = FailureReason.CANCELED if isinstance(error, CancelledError) else FailureReason.OTHER
            self._statistics.record_failure(request.arrival_ns, now, reason)
            return
        if isinstance(request, StepRequest):
            request.composed = spent
        self._statistics.record_composed(self._batch_size(request), now - request.arrival_ns, spent)

    def _batch_size(self, request: InferRequest) -> int:
        first = next(iter(request.inputs.values()), None)
        return max(1, int(first.array.shape[0])) if self._batching and first is not None else 1

    def close(self) -> None:
        """Runs that are under way go on."""
        self._closed = True
