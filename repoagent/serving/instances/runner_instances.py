"""Instances over a :class:`BatchRunner`: tensors in, tensors out."""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar, Final

from repoagent.errors import CancelledError, RepoAgentError
from repoagent.serving.instances.backend import BatchRunner, Capability
from repoagent.serving.instances.batches import Batch, Joiner, RaggedJoiner, requested_outputs
from repoagent.serving.instances.instance import Instance, VersionContext, as_repoagent_error, batch_size
from repoagent.serving.measuring.latencies import unpredictable
from repoagent.serving.measuring.statistics import ExecutionTimes, FailureReason
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import answer_error, submit_and_wait
from repoagent.serving.requests.tensor import Reshaper, Tensor, input_bytes

_CANCELLED: Final = "request cancelled"
_UNWATCHED: Final = 7
"""Of eight calls to a model that is not quick one is looked at closely: the thread's clock is slow."""


class RunnerInstance(Instance):
    """An instance over a :class:`BatchRunner`; see :class:`Instance` for the stages of an execution."""

    capabilities = Capability.STAGED
    joiner: ClassVar[type[Joiner]] = Joiner

    def __init__(self, context: VersionContext, runner: BatchRunner) -> None:
        self._model_name = context.name
        self._version = str(context.version)
        self._runner = runner
        self._run: Callable[..., dict[str, Tensor]] = runner.run
        can = runner.capabilities
        self._run_into = runner.run_into if Capability.PLACES_OUTPUTS in can else None
        self._statistics = context.statistics
        self._record = context.statistics.record
        self._batching = context.batching
        self._reshaper = Reshaper.of(context.config)
        self._joiner = self.joiner(context.config)
        self._endable = runner if Capability.ENDS_RUNS in can else None
        self._running: Sequence[InferRequest] = ()
        """What an endable runner executes."""
        self._ended = False
        self._ending = threading.Lock()
        self._look: Final = self._end_if_cancelled
        # A thread that serves others too, such as an event loop, must not execute what may take any time.
        self.run_time = unpredictable() if Capability.MAY_RUN_FOREVER in can else context.run_time
        only_computes = Capability.ONLY_COMPUTES in can
        self._note = context.run_time.note_computing if only_computes else context.run_time.note
        self._calls = -1

    def call(self, request: InferRequest) -> InferResponse:
        start = time.monotonic_ns()
        try:
            inputs: Mapping[str, Tensor] = request.inputs
            if self._reshaper is not None:
                inputs = self._reshaper.to_model(inputs)
            self._calls += 1
            cpu_ns = 0 if self._calls & _UNWATCHED or self.run_time.quick else time.thread_time_ns()
            input_end = time.monotonic_ns()
            if request.output_places and self._run_into is not None:
                places = request.output_places
                outputs = self._run_for((request,), self._run_into, inputs, request.requested_outputs, places)
            else:
                outputs = self._run_for((request,), self._run, inputs, request.requested_outputs)
            output_start = time.monotonic_ns()
            cpu_ns = cpu_ns and time.thread_time_ns() - cpu_ns
            self._note(output_start - input_end, cpu_ns, input_bytes(request.inputs))
            if self._reshaper is not None:
                outputs = self._reshaper.to_client(outputs)
        except Exception as error:
            self._statistics.record_failure(request.arrival_ns, time.monotonic_ns(), FailureReason.BACKEND)
            raise as_repoagent_error(error, self._model_name) from error
        response = InferResponse(self._model_name, self._version, request.asked.id, outputs)
        request.times = times = ExecutionTimes(start, input_end, output_start, time.monotonic_ns())
        self._record(batch_size(request) if self._batching else 1, request.arrival_ns or start, times)
        return response

    def _run_for(
        self, requests: Sequence[InferRequest], run: Callable[..., dict[str, Tensor]], *arguments: object
    ) -> dict[str, Tensor]:
        """Run; it ends when all of ``requests`` have been cancelled, if the runner can do that."""
        endable = self._endable
        if endable is None:
            return run(*arguments)
        self._running = requests
        for request in requests:
            request.on_cancel = self._look
        try:
            if _cancelled(requests):
                raise CancelledError(_CANCELLED)
            return run(*arguments)
        finally:
            with self._ending:
                self._running = ()
                if self._ended:
                    self._ended = False
                    endable.renew()

    def _end_if_cancelled(self) -> None:
        with self._ending:
            if self._endable is not None and self._running and not self._ended and _cancelled(self._running):
                self._ended = True
                self._endable.end_run(CancelledError(_CANCELLED))

    def execute(self, requests: Sequence[InferRequest]) -> None:
        batch = self.prepare(requests)
        self.run(batch)
        self.answer(batch)

    # -- the stages of an execution ------------------------------------------------------------------------------

    def _joins(self, requests: Sequence[InferRequest]) -> bool:
        return self._batching and len(requests) > 1

    def prepare(self, requests: Sequence[InferRequest]) -> Batch:
        if not self._joins(requests):
            return Batch(requests)
        batch = Batch(requests, joined=True, start_ns=time.monotonic_ns())
        try:
            batch.sizes = self._joiner.sizes(requests)
            batch.wanted = requested_outputs(requests)
            self._take_inputs(batch, requests)
        except Exception as error:
            batch.error = as_repoagent_error(error, self._model_name)
        batch.input_end_ns = time.monotonic_ns()
        return batch

    def _take_inputs(self, batch: Batch, requests: Sequence[InferRequest]) -> None:
        inputs: Mapping[str, Tensor] = self._joiner.join(requests)
        batch.inputs = inputs if self._reshaper is None else self._reshaper.to_model(inputs)

    def run(self, batch: Batch) -> None:
        if not batch.joined:
            self._execute_singly(batch.requests)
        elif batch.error is None:
            try:
                batch.outputs = self._run_joined(batch)
            except Exception as error:
                batch.error = as_repoagent_error(error, self._model_name)

    def _run_joined(self, batch: Batch) -> Mapping[str, Tensor]:
        cpu_ns = 0 if self.run_time.quick else time.thread_time_ns()
        begin = time.monotonic_ns()
        # What has been ready for a while has waited for this: in the queue, as far as the statistics know.
        batch.start_ns += begin - batch.input_end_ns
        batch.input_end_ns = begin
        outputs = self._run_for(batch.requests, self._run, batch.inputs, batch.wanted)
        batch.output_start_ns = end = time.monotonic_ns()
        cpu_ns = cpu_ns and time.thread_time_ns() - cpu_ns
        self._note(end - begin, cpu_ns, input_bytes(batch.inputs))
        return outputs

    def answer(self, batch: Batch) -> None:
        if not batch.joined:
            return
        batch.inputs = {}
        if batch.error is not None:
            self._fail_together(batch.requests, batch.error)
            return
        try:
            outputs = batch.outputs if self._reshaper is None else self._reshaper.to_client(dict(batch.outputs))
            parts = self._joiner.split(outputs, batch.requests, batch.sizes)
        except Exception as error:
            self._fail_together(batch.requests, as_repoagent_error(error, self._model_name))
        else:
            self._answer_together(batch, parts)

    def _execute_singly(self, requests: Sequence[InferRequest]) -> None:
        for request in requests:
            try:
                response = self.call(request)
            except RepoAgentError as error:
                answer_error(request, error, self._version)
            else:
                request.send(response, True)

    def _answer_together(self, batch: Batch, parts: Sequence[dict[str, Tensor]]) -> None:
        times = ExecutionTimes(batch.start_ns, batch.input_end_ns, batch.output_start_ns, time.monotonic_ns())
        start, requests, sizes = times.start_ns, batch.requests, batch.sizes
        arrivals = [request.arrival_ns or start for request in requests if not request.placeholder]
        total = sum(sizes)
        inferences = total
        if len(arrivals) < len(requests):
            inferences = sum(size for request, size in zip(requests, sizes, strict=True) if not request.placeholder)
        self._statistics.record_together(total, inferences, arrivals, times)
        name, version = self._model_name, self._version
        for request, outputs in zip(requests, parts, strict=True):
            if request.placeholder:
                continue
            request.times = times
            request.send(InferResponse(name, version, request.asked.id, outputs), True)

    def _fail_together(self, requests: Sequence[InferRequest], error: RepoAgentError) -> None:
        for request in requests:
            if not request.placeholder:
                self._statistics.record_failure(request.arrival_ns, time.monotonic_ns(), FailureReason.BACKEND)
                answer_error(request, error, self._version)

    def rehearse(self, request: InferRequest) -> None:
        inputs = request.inputs if self._reshaper is None else self._reshaper.to_model(request.inputs)
        self._run_for((request,), self._run, inputs, ())

    def close(self) -> None:
        self._runner.close()


class RaggedInstance(RunnerInstance):
    """One whose model always sees a batch as its joiner makes it, also of a single request; without a reshape."""

    joiner = RaggedJoiner

    def _joins(self, requests: Sequence[InferRequest]) -> bool:
        return bool(requests)

    def call(self, request: InferRequest) -> InferResponse:
        return submit_and_wait(lambda one: self.execute((one,)), request, self._model_name)

    def rehearse(self, request: InferRequest) -> None:
        self._run_for((request,), self._run, self._joiner.join((request,)), ())


class StagedRunnerInstance(RunnerInstance):
    """One over a runner whose runs overlap: it joins the inputs itself.

    A batch of one request is a batch as well: what has begun must end in order.
    """

    capabilities = Capability.STAGED | Capability.OVERLAPS

    def _joins(self, requests: Sequence[InferRequest]) -> bool:
        return self._batching and bool(requests)

    def _take_inputs(self, batch: Batch, requests: Sequence[InferRequest]) -> None:
        reshaper = self._reshaper
        batch.parts = self._joiner.parts(
            [request.inputs if reshaper is None else reshaper.to_model(request.inputs) for request in requests]
        )

    def run(self, batch: Batch) -> None:
        self.begin(batch)
        self.end(batch)

    def begin(self, batch: Batch) -> None:
        if not batch.joined or batch.error is not None:
            return
        begin = time.monotonic_ns()
        # What has been ready for a while has waited for this: in the queue, as far as the statistics know.
        batch.start_ns += begin - batch.input_end_ns
        try:
            batch.begun = self._runner.begin(batch.parts, batch.wanted)
        except Exception as error:
            batch.error = as_repoagent_error(error, self._model_name)
        batch.parts = {}
        # Joining and copying are preparation; what follows is the device's time.
        batch.input_end_ns = time.monotonic_ns()

    def end(self, batch: Batch) -> None:
        if not batch.joined:
            self._execute_singly(batch.requests)
            return
        begun, batch.begun = batch.begun, None
        if begun is None:
            return
        try:
            batch.outputs = self._runner.finish(begun)
        except Exception as error:
            batch.error = as_repoagent_error(error, self._model_name)
        batch.output_start_ns = end = time.monotonic_ns()
        self._note(end - batch.input_end_ns, 0)


def _cancelled(requests: Sequence[InferRequest]) -> bool:
    return all(request.cancelled or request.placeholder for request in requests)
