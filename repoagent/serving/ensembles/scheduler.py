"""What an ensemble has in place of a scheduler with instances: every request becomes a run of its own."""

import time
from collections.abc import Callable

from repoagent.errors import CancelledError, UnavailableError
from repoagent.serving.ensembles.plan import EnsemblePlan
from repoagent.serving.ensembles.run import EnsembleRun, RunOutcome
from repoagent.serving.ensembles.step_request import StepLimiter, StepRequest
from repoagent.serving.instances.instance import VersionContext
from repoagent.serving.measuring.statistics import FailureReason
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.scheduling.scheduler import Scheduler


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
        self._plan = plan
        self._version = str(version.version)
        self._statistics = version.statistics
        self._submit_step = submit_step
        self._batching = version.batching
        limited = plan.steps if max_inflight else ()
        self._limiters = tuple(StepLimiter(max_inflight, self._submit_late) for _ in limited)
        self._closed = False

    def _submit_late(self, request: StepRequest) -> None:
        request.renew_timeout()
        self._submit_step(request)

    def submit(self, request: InferRequest) -> None:
        if request.cancelled or self._closed:
            self._refuse(request)
            return

        def done(outcome: RunOutcome) -> None:
            self._record(request, outcome)

        EnsembleRun(self._plan, request, self._version, self._submit_step, done, self._limiters).start()

    def _refuse(self, request: InferRequest) -> None:
        cancelled = request.cancelled
        reason = FailureReason.CANCELED if cancelled else FailureReason.OTHER
        self._statistics.record_failure(request.arrival_ns, time.monotonic_ns(), reason)
        unloaded = UnavailableError(f"model '{self._plan.name}' is unloaded")
        answer_error(request, CancelledError("request cancelled") if cancelled else unloaded, self._version)

    def _record(self, request: InferRequest, outcome: RunOutcome) -> None:
        now = time.monotonic_ns()
        if outcome.error is not None:
            cancelled = isinstance(outcome.error, CancelledError)
            reason = FailureReason.CANCELED if cancelled else FailureReason.OTHER
            self._statistics.record_failure(request.arrival_ns, now, reason)
            return
        spent = outcome.durations
        if isinstance(request, StepRequest):
            request.composed = spent
        self._statistics.record_composed(
            self._batch_size(request),
            request_ns=now - request.arrival_ns,
            queue_ns=spent.queue_ns,
            input_ns=spent.input_ns,
            infer_ns=spent.infer_ns,
            output_ns=spent.output_ns,
        )

    def _batch_size(self, request: InferRequest) -> int:
        first = next(iter(request.inputs.values()), None)
        return max(1, int(first.array.shape[0])) if self._batching and first is not None else 1

    def close(self) -> None:
        """Runs that are under way go on."""
        self._closed = True
