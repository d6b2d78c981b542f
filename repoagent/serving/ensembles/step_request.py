"""What a run of an ensemble asks of a member."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from repoagent.errors import CancelledError, InvalidArgumentError
from repoagent.serving.ensembles.plan import Step
from repoagent.serving.measuring.statistics import Durations
from repoagent.serving.requests.request import Asked, InferRequest, ParameterValue, ResponseSender
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.requests.tensor import Tensor

if TYPE_CHECKING:
    from repoagent.serving.ensembles.run import EnsembleRun, Scope

_SIGN_BIT = 1 << 63


@dataclass(frozen=True, slots=True)
class SequenceMarks:
    """A request's place in its sequence. A step has that of the request, or what an earlier step's answer names."""

    correlation_id: int | str = 0
    start: bool = False
    end: bool = False

    @classmethod
    def of(cls, request: InferRequest) -> "SequenceMarks":
        return cls(request.asked.correlation_id, request.asked.sequence_start, request.asked.sequence_end)

    def after(self, parameters: Mapping[str, ParameterValue]) -> "SequenceMarks":
        """These, or those in the parameters of a response: what it leaves out of the flags is then not set. Raises
        ``InvalidArgumentError``, in Triton's words, for a type that means nothing."""
        if not any(name in parameters for name in ("sequence_id", "sequence_start", "sequence_end")):
            return self
        number = parameters.get("sequence_id", self.correlation_id)
        if isinstance(number, bool | float):
            raise InvalidArgumentError(
                "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
            )
        return SequenceMarks(number, _flag(parameters, "sequence_start"), _flag(parameters, "sequence_end"))

    def parameters(self) -> dict[str, ParameterValue]:
        """These in the form of an ensemble's response."""
        number = self.correlation_id
        if isinstance(number, int):
            number = (number + _SIGN_BIT) % (2 * _SIGN_BIT) - _SIGN_BIT  # Parameters are signed, IDs are not.
        return {"sequence_id": number, "sequence_start": self.start, "sequence_end": self.end}


def _flag(parameters: Mapping[str, ParameterValue], name: str) -> bool:
    value = parameters.get(name, False)
    if not isinstance(value, bool):
        raise InvalidArgumentError(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
    return value


class StepRequest(InferRequest):
    """A request to a member. It is cancelled as soon as the ensemble's own request is, or another step failed."""

    __slots__ = ("_own_cancelled", "composed", "inside", "marks", "run", "scope", "step")

    def __init__(
        self,
        run: "EnsembleRun",
        step: Step,
        scope: "Scope",
        inputs: dict[str, Tensor],
        marks: SequenceMarks,
        sender: ResponseSender,
    ) -> None:
        origin = run.request
        self.run = run
        self.step = step
        self.scope = scope
        self.marks = marks
        self.inside = False
        """Whether it has one of the places that a :class:`StepLimiter` gives."""
        self.composed: Durations | None = None
        """Set by a member that is an ensemble itself."""
        asked = Asked(
            step.model_name,
            inputs,
            step.model_version,
            tuple(step.outputs),
            id=origin.asked.id,
            parameters=origin.asked.parameters,
            correlation_id=marks.correlation_id,
            sequence_start=marks.start,
            sequence_end=marks.end,
            priority=origin.asked.priority,
            timeout_us=_time_left_us(origin),
            volatile=origin.asked.volatile,
        )
        super().__init__(asked, sender)
        if origin.trace is not None:
            self.trace = origin.trace.child()

    @property
    def spent(self) -> Durations:
        """What it spent at the member, or at the members of that, once it was answered; zero if it was not executed."""
        if self.composed is not None:
            return self.composed
        return Durations() if self.times is None else Durations.of(self.arrival_ns, self.times)

    def renew_timeout(self) -> None:
        """It has stood in line: what is left of the timeout is less than when it was made."""
        self.asked = replace(self.asked, timeout_us=_time_left_us(self.run.request))

    @property
    def cancelled(self) -> bool:
        return self._own_cancelled or self.run.stopped

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self._own_cancelled = value

    @property
    def behind(self) -> bool:
        return self.run.request.behind

    @behind.setter
    def behind(self, value: bool) -> None:
        """It is always the client of the whole ensemble that is behind."""


def _time_left_us(request: InferRequest) -> int:
    timeout_us = request.asked.timeout_us
    if not timeout_us:
        return 0
    passed_us = (time.monotonic_ns() - request.arrival_ns) // 1000
    return max(1, timeout_us - passed_us)


class StepLimiter:
    """Lets requests through to ``submit``, ``limit`` at a time; others stand in line. No thread waits here.

    One object per step, for all requests to the ensemble.
    """

    def __init__(self, limit: int, submit: Callable[[InferRequest], None]) -> None:
        self._limit = limit
        self._submit = submit
        self._lock = threading.Lock()
        self._inside = 0
        self._line: dict[StepRequest, None] = {}
        self._due: deque[StepRequest] = deque()
        self._submitting = False

    def enter(self, request: StepRequest) -> None:
        """Submit ``request``, now or later. Its run hears once that it stands in line no more: before it is submitted,
        or because it was cancelled."""
        request.on_cancel = lambda: self._withdraw(request)
        with self._lock:
            waits = self._inside >= self._limit
            if waits:
                self._line[request] = None
            else:
                self._inside += 1
                request.inside = True
        if not waits:
            self._let_in(request)
        elif request.cancelled:
            self._withdraw(request)

    def _let_in(self, request: StepRequest) -> None:
        request.run.left_line()
        request.renew_timeout()
        self._submit(request)

    def leave(self) -> None:
        """One that was submitted has ended: the next in line takes its place."""
        with self._lock:
            if not self._line:
                self._inside -= 1
                return
            request = next(iter(self._line))
            del self._line[request]
            request.inside = True
            self._due.append(request)
            if self._submitting:
                return  # A member that answers at once is in the loop below: do not nest.
            self._submitting = True
        while True:
            with self._lock:
                if not self._due:
                    self._submitting = False
                    return
                request = self._due.popleft()
            self._let_in(request)

    def _withdraw(self, request: StepRequest) -> None:
        """Answer a cancelled request that still stands in line."""
        with self._lock:
            stood = request in self._line
            self._line.pop(request, None)
        if stood:
            request.run.left_line()
            answer_error(request, CancelledError("request cancelled"))
