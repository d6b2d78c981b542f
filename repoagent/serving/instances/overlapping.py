"""Instances over a :class:`StagedRunner`: one batch is joined and copied while the device computes another."""

import time
from collections.abc import Sequence

from repoagent.serving.instances.backend import StagedRunner
from repoagent.serving.instances.base import as_repoagent_error
from repoagent.serving.instances.batches import Batch, Joiner, requested_outputs
from repoagent.serving.instances.runner_instances import RunnerInstance
from repoagent.serving.instances.version_context import VersionContext
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.reshape import Reshaper

__all__ = ["StagedRunnerInstance"]


class StagedRunnerInstance(RunnerInstance):
    """See :class:`~repoagent.serving.instances.base.OverlappingInstance`. The runner joins the inputs itself.

    A batch of one request is a batch as well: what has begun must end in order.
    """

    def __init__(
        self,
        context: VersionContext,
        runner: StagedRunner,
        *,
        reshaper: Reshaper | None = None,
        joiner: Joiner | None = None,
    ) -> None:
        super().__init__(context, runner, reshaper=reshaper, joiner=joiner)
        self._staged = runner

    def _joins(self, requests: Sequence[InferRequest]) -> bool:
        return self._batching and bool(requests)

    def prepare(self, requests: Sequence[InferRequest]) -> Batch:
        if not self._joins(requests):
            return Batch(requests)
        batch = Batch(requests, joined=True, start_ns=time.monotonic_ns())
        try:
            batch.sizes = self._joiner.sizes(requests)
            batch.wanted = requested_outputs(requests)
            reshaper = self._reshaper
            batch.parts = self._joiner.parts(
                [request.inputs if reshaper is None else reshaper.to_model(request.inputs) for request in requests]
            )
        except Exception as error:
            batch.error = as_repoagent_error(error, self._model_name)
        batch.input_end_ns = time.monotonic_ns()
        return batch

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
            batch.begun = self._staged.begin(batch.parts, batch.wanted)
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
            batch.outputs = self._staged.finish(begun)
        except Exception as error:
            batch.error = as_repoagent_error(error, self._model_name)
        batch.output_start_ns = end = time.monotonic_ns()
        self._note(end - batch.input_end_ns, 0)
