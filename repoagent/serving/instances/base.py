"""Execution instances: how many a configuration asks for, and what the schedulers drive.

A backend gives either a :class:`BatchRunner` (tensors in, tensors out) or a native :class:`BackendInstance` that
answers through senders. Two adapters make them look the same to a scheduler and keep the statistics.
"""

import logging
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from repoagent.errors import CancelledError, InternalError, RepoAgentError
from repoagent.serving.instances.backend import BackendInstance, DeferringInstance, InstanceSpec, Lingering
from repoagent.serving.instances.batches import Batch
from repoagent.serving.instances.version_context import VersionContext
from repoagent.serving.measuring.run_time import RunTime, unpredictable
from repoagent.serving.measuring.statistics import ExecutionTimes
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.reshape import Reshaper
from repoagent.serving.requests.senders import (
    CollectingSender,
    RecordingSender,
    answer_error,
    reshape,
    submit_and_wait,
)

if TYPE_CHECKING:
    from repoagent.config import ModelConfig
    from repoagent.config.model_config_pb2 import ModelInstanceGroup

__all__ = [
    "Instance",
    "NativeInstance",
    "OverlappingInstance",
    "StagedInstance",
    "as_repoagent_error",
    "batch_size",
    "group_specs",
    "instance_specs",
]

logger = logging.getLogger(__name__)


def instance_specs(config: "ModelConfig") -> list[InstanceSpec]:
    """The instances that the groups of a complete configuration ask for, with Triton's names ``GROUP_NUMBER``."""
    return [spec for group in config.instance_group for spec in group_specs(group)]


def group_specs(group: "ModelInstanceGroup") -> list[InstanceSpec]:
    """The instances of one group."""
    devices = [device for device in list(group.gpus) or [0] for _ in range(group.count)]
    kind = group.Kind.Name(group.kind).removeprefix("KIND_")
    profiles = tuple(group.profile)
    return [InstanceSpec(f"{group.name}_{number}", kind, device, profiles) for number, device in enumerate(devices)]


def as_repoagent_error(error: BaseException, model_name: str) -> RepoAgentError:
    """``error`` itself if it is one of ours; else it is logged, and an InternalError with its text returned."""
    if isinstance(error, RepoAgentError):
        return error
    logger.error("model '%s' failed unexpectedly", model_name, exc_info=error)
    return InternalError(f"{type(error).__name__}: {error}")


def batch_size(request: InferRequest) -> int:
    """How many inferences a request to a batching model asks for."""
    for tensor in request.inputs.values():
        size: int = tensor.array.shape[0]
        return max(1, size)
    return 1


class Instance(Protocol):
    """What a scheduler drives; never from two threads at once."""

    @property
    def run_time(self) -> RunTime:
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


@runtime_checkable
class StagedInstance(Instance, Protocol):
    """One whose executions have three stages, of which only :meth:`run` needs the instance for itself.

    :meth:`prepare` and :meth:`answer` may be called on any thread while another one runs, and one instance may run
    what another one of the same model prepared. None of them raises: what goes wrong is the answer.
    """

    def prepare(self, requests: Sequence[InferRequest]) -> Batch:
        """Make a batch of ``requests``."""

    def run(self, batch: Batch) -> None:
        """Execute ``batch``. What is not executed together is answered at once."""

    def answer(self, batch: Batch) -> None:
        """Answer the requests of ``batch``, which has been run."""


@runtime_checkable
class OverlappingInstance(StagedInstance, Protocol):
    """One whose :meth:`run` has two halves, of which the second waits for a device.

    Between them the next batch may begin. Batches end in the order in which they have begun.
    """

    def begin(self, batch: Batch) -> None:
        """Let the device begin with ``batch``; at most two have begun and not ended. Never raises."""

    def end(self, batch: Batch) -> None:
        """Wait until ``batch``, which has begun, is done. Never raises."""


class NativeInstance:
    """An instance over a backend's own :class:`BackendInstance`."""

    def __init__(
        self,
        context: VersionContext,
        inner: BackendInstance,
    ) -> None:
        self._model_name = context.name
        self._version = str(context.version)
        self._inner = inner
        self._statistics = context.statistics
        self._batching = context.batching
        self._decoupled = context.decoupled
        self._reshaper = Reshaper.of(context.config)
        self.defers = isinstance(inner, DeferringInstance) and inner.defers
        """Whether it takes requests while others that it took are not answered yet."""
        self.lingers = isinstance(inner, Lingering) and inner.lingers
        """Whether its end waits for something outside, such as a process, and holds no other one up."""
        self.run_time = unpredictable()  # It may do anything, also wait for another request.

    def call(self, request: InferRequest) -> InferResponse:
        return submit_and_wait(lambda one: self.execute((one,)), request, self._model_name)

    def execute(self, requests: Sequence[InferRequest]) -> None:
        started = time.monotonic_ns()
        total = 0
        senders: dict[InferRequest, RecordingSender] = {}
        for request in requests:
            size = batch_size(request) if self._batching else 1
            total += size
            if not request.placeholder:
                senders[request] = RecordingSender(
                    request, self._statistics, batch_size=size, started_ns=started, decoupled=self._decoupled
                )
        try:
            if self._reshaper is not None:
                for request in dict.fromkeys(requests):  # Free slots of a batch have one request together.
                    reshape(request, self._reshaper)
            self._inner.execute(requests)
        except Exception as error:
            failure = as_repoagent_error(error, self._model_name)
            for request, sender in senders.items():
                if not sender.ended:
                    answer_error(request, failure, self._version)
        end = time.monotonic_ns()
        self._statistics.record_execution(total, ExecutionTimes(started, started, end, end))

    def rehearse(self, request: InferRequest) -> None:
        collector = CollectingSender()
        request.redirect(collector)
        if self._reshaper is not None:
            reshape(request, self._reshaper)
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
