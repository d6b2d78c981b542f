"""What a run of an ensemble asks of a member."""

import time
from dataclasses import dataclass, replace
from typing import Protocol

from repoagent.serving.ensembles.plan import Step
from repoagent.serving.ensembles.sequence_marks import SequenceMarks
from repoagent.serving.requests.request import Asked, InferRequest, ResponseSender
from repoagent.serving.requests.tensor import Tensor

__all__ = ["Durations", "StepRequest"]


class Run(Protocol):
    """One request on its way through an ensemble."""

    request: InferRequest

    @property
    def stopped(self) -> bool:
        """No one wants the result any more."""


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

    __slots__ = ("_own_cancelled", "_run", "composed", "inside", "marks")

    def __init__(
        self, run: Run, step: Step, inputs: dict[str, Tensor], marks: SequenceMarks, sender: ResponseSender
    ) -> None:
        origin = run.request
        self._run = run
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

    def renew_timeout(self) -> None:
        """It has stood in line: what is left of the timeout is less than when it was made."""
        self.asked = replace(self.asked, timeout_us=_time_left_us(self._run.request))

    @property
    def cancelled(self) -> bool:
        """See :class:`InferRequest`."""
        return self._own_cancelled or self._run.stopped

    @cancelled.setter
    def cancelled(self, value: bool) -> None:
        self._own_cancelled = value


def _time_left_us(request: InferRequest) -> int:
    timeout_us = request.asked.timeout_us
    if not timeout_us:
        return 0
    passed_us = (time.monotonic_ns() - request.arrival_ns) // 1000
    return max(1, timeout_us - passed_us)
