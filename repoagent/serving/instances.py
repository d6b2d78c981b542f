"""Execution instances: how many a configuration asks for, and what the schedulers drive.

A backend gives either a :class:`BatchRunner` (tensors in, tensors out) or a native :class:`BackendInstance` that
answers through senders. Two adapters make them look the same to a scheduler and keep the statistics.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from repoagent.errors import CancelledError, InternalError, RepoAgentError
from repoagent.serving.backends.base import BackendInstance, BatchRunner, ComputingRunner, InstanceSpec, PlacingRunner
from repoagent.serving.batches import Joiner, requested_outputs
from repoagent.serving.pace import Pace, unpredictable
from repoagent.serving.request import InferRequest, InferResponse
from repoagent.serving.reshape import Reshaper
from repoagent.serving.senders import CollectingSender, RecordingSender, answer_error
from repoagent.serving.statistics import FailureReason, ModelStatistics, RequestTimes
from repoagent.serving.types import Tensor

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.config.model_config_pb2 import ModelInstanceGroup

__all__ = [
    "Instance",
    "NativeInstance",
    "RaggedInstance",
    "RunnerInstance",
    "as_repoagent_error",
    "group_specs",
    "instance_specs",
]

logger = logging.getLogger(__name__)

_UNWATCHED: Final = 3
"""Of four calls to a model that is not quick one is looked at closely: the thread's clock is slow."""


def instance_specs(config: "ModelConfig") -> list[InstanceSpec]:
    """The instances that the groups of a complete configuration ask for, with Triton's names ``GROUP_NUMBER``."""
    return [spec for group in config.instance_group for spec in group_specs(group)]


def group_specs(group: "ModelInstanceGroup") -> list[InstanceSpec]:
    """The instances of one group."""
    devices = [device for device in list(group.gpus) or [0] for _ in range(group.count)]
    kind = group.Kind.Name(group.kind).removeprefix("KIND_")
    return [InstanceSpec(f"{group.name}_{number}", kind, device) for number, device in enumerate(devices)]


def as_repoagent_error(error: Exception, model_name: str) -> RepoAgentError:
    """``error`` itself if it is one of ours; else it is logged, and an InternalError with its text returned."""
    if isinstance(error, RepoAgentError):
        return error
    logger.error("model '%s' failed unexpectedly", model_name, exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


def _batch_size(request: InferRequest) -> int:
    """How many inferences a request to a batching model asks for."""
    for tensor in request.inputs.values():
        size: int = tensor.array.shape[0]
        return max(1, size)
    return 1


class Instance(Protocol):
    """What a scheduler drives; never from two threads at once."""

    @property
    def pace(self) -> Pace:
        """How long executions take, usually the same object in all instances of a model."""

    def call(self, request: InferRequest) -> InferResponse:
        """Execute one request and return its answer; its sender is not used.

        Raises:
            RepoAgentError: the request failed.
        """

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """Answer every request through its sender, all as one batch if the model batches. Never raises."""

    def rehearse(self, request: InferRequest) -> None:
        """Execute one request for its side effects only; nothing is counted. Raises as :meth:`call` does."""

    def close(self) -> None:
        """Let go of everything; no request is running."""


class RunnerInstance:
    """An instance over a :class:`BatchRunner`."""

    def __init__(
        self,
        model_name: str,
        version: int,
        runner: BatchRunner,
        statistics: ModelStatistics,
        *,
        batching: bool = False,
        reshaper: Reshaper | None = None,
        joiner: Joiner | None = None,
        pace: Pace | None = None,
    ) -> None:
        self._model_name = model_name
        self._version = str(version)
        self._runner = runner
        self._run = runner.run
        self._run_into = runner.run_into if isinstance(runner, PlacingRunner) else None
        self._statistics = statistics
        self._batching = batching
        self._reshaper = reshaper
        self._joiner = joiner or Joiner()
        self.pace = pace or Pace()
        computes = isinstance(runner, ComputingRunner) and runner.only_computes
        self._note = self.pace.note_computing if computes else self.pace.note
        self._calls = -1

    def call(self, request: InferRequest) -> InferResponse:
        start = time.monotonic_ns()
        try:
            inputs: Mapping[str, Tensor] = request.inputs
            if self._reshaper is not None:
                inputs = self._reshaper.to_model(inputs)
            self._calls += 1
            cpu_ns = 0 if self._calls & _UNWATCHED or self.pace.quick else time.thread_time_ns()
            input_end = time.monotonic_ns()
            if request.output_places and self._run_into is not None:
                outputs = self._run_into(inputs, request.requested_outputs, request.output_places)
            else:
                outputs = self._run(inputs, request.requested_outputs)
            output_start = time.monotonic_ns()
            self._note(output_start - input_end, cpu_ns and time.thread_time_ns() - cpu_ns)
            if self._reshaper is not None:
                outputs = self._reshaper.to_client(outputs)
        except Exception as error:
            self._statistics.record_failure(request.arrival_ns, time.monotonic_ns(), FailureReason.BACKEND)
            raise as_repoagent_error(error, self._model_name) from error
        response = InferResponse(self._model_name, self._version, request.id, outputs)
        times = RequestTimes(request.arrival_ns or start, start, input_end, output_start, time.monotonic_ns())
        request.times = times
        self._statistics.record(_batch_size(request) if self._batching else 1, times)
        return response

    def execute(self, requests: Sequence[InferRequest]) -> None:
        if self._batching and len(requests) > 1:
            self._execute_together(requests)
            return
        for request in requests:
            try:
                response = self.call(request)
            except RepoAgentError as error:
                answer_error(request, error, self._version)
            else:
                if request.sender is not None:
                    request.sender.send(response, True)

    def _execute_together(self, requests: Sequence[InferRequest]) -> None:
        start = time.monotonic_ns()
        joiner, reshaper = self._joiner, self._reshaper
        try:
            sizes = joiner.sizes(requests)
            inputs: Mapping[str, Tensor] = joiner.join(requests)
            if reshaper is not None:
                inputs = reshaper.to_model(inputs)
            cpu_ns = 0 if self.pace.quick else time.thread_time_ns()
            input_end = time.monotonic_ns()
            outputs = self._run(inputs, requested_outputs(requests))
            output_start = time.monotonic_ns()
            self._note(output_start - input_end, cpu_ns and time.thread_time_ns() - cpu_ns)
            if reshaper is not None:
                outputs = reshaper.to_client(outputs)
            parts = joiner.split(outputs, requests, sizes)
        except Exception as error:
            self._fail_together(requests, as_repoagent_error(error, self._model_name))
        else:
            times = RequestTimes(start, start, input_end, output_start, time.monotonic_ns())
            self._answer_together(requests, sizes, parts, times)

    def _answer_together(
        self,
        requests: Sequence[InferRequest],
        sizes: Sequence[int],
        parts: Sequence[dict[str, Tensor]],
        times: RequestTimes,
    ) -> None:
        self._statistics.record_execution(sum(sizes), times)
        for request, size, outputs in zip(requests, sizes, parts, strict=True):
            if request.placeholder:
                continue
            request.times = RequestTimes(request.arrival_ns or times.start_ns, *times[1:])
            self._statistics.record_success(size, request.times)
            if request.sender is not None:
                request.sender.send(InferResponse(self._model_name, self._version, request.id, outputs), True)

    def _fail_together(self, requests: Sequence[InferRequest], error: RepoAgentError) -> None:
        for request in requests:
            if not request.placeholder:
                self._statistics.record_failure(request.arrival_ns, time.monotonic_ns(), FailureReason.BACKEND)
                answer_error(request, error, self._version)

    def rehearse(self, request: InferRequest) -> None:
        inputs = request.inputs if self._reshaper is None else self._reshaper.to_model(request.inputs)
        self._run(inputs, ())

    def close(self) -> None:
        self._runner.close()


class RaggedInstance(RunnerInstance):
    """One whose model always sees a batch as its joiner makes it, also of a single request."""

    def call(self, request: InferRequest) -> InferResponse:
        own, collector = request.sender, CollectingSender()
        request.sender = collector
        try:
            self._execute_together((request,))
            return collector.result(self._model_name)
        finally:
            request.sender = own

    def execute(self, requests: Sequence[InferRequest]) -> None:
        self._execute_together(requests)

    def rehearse(self, request: InferRequest) -> None:
        self._run(self._joiner.join((request,)), ())


class NativeInstance:
    """An instance over a backend's own :class:`BackendInstance`."""

    def __init__(
        self,
        model_name: str,
        version: int,
        inner: BackendInstance,
        statistics: ModelStatistics,
        *,
        batching: bool = False,
        decoupled: bool = False,
    ) -> None:
        self._model_name = model_name
        self._version = str(version)
        self._inner = inner
        self._statistics = statistics
        self._batching = batching
        self._decoupled = decoupled
        self.pace = unpredictable()  # It may do anything, also wait for another request.

    def call(self, request: InferRequest) -> InferResponse:
        own = request.sender
        collector = CollectingSender()
        request.sender = collector
        try:
            self.execute((request,))
            return collector.result(self._model_name)
        finally:
            request.sender = own

    def execute(self, requests: Sequence[InferRequest]) -> None:
        started = time.monotonic_ns()
        total = 0
        for request in requests:
            size = _batch_size(request) if self._batching else 1
            total += size
            if request.placeholder:
                continue
            request.sender = RecordingSender(
                request, self._statistics, batch_size=size, started_ns=started, decoupled=self._decoupled
            )
        try:
            self._inner.execute(requests)
        except Exception as error:
            self._answer_all(requests, as_repoagent_error(error, self._model_name))
        end = time.monotonic_ns()
        self._statistics.record_execution(total, RequestTimes(started, started, started, end, end))

    def _answer_all(self, requests: Sequence[InferRequest], error: RepoAgentError) -> None:
        # A request that has had its answer has its own sender back (RecordingSender): leave that one alone.
        for request in requests:
            if isinstance(request.sender, RecordingSender):
                answer_error(request, error, self._version)

    def rehearse(self, request: InferRequest) -> None:
        collector = CollectingSender()
        request.sender = collector
        self._inner.execute((request,))
        try:
            if self._decoupled:
                collector.finish()
            else:
                collector.result(self._model_name)
        except CancelledError:
            logger.info("the warm-up of model '%s' was cancelled", self._model_name)

    def close(self) -> None:
        self._inner.close()
