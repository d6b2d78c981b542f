"""Execution instances: how many a configuration asks for, and what the schedulers drive.

A backend gives either a :class:`BatchRunner` (tensors in, tensors out) or a native :class:`BackendInstance` that
answers through senders. Two adapters make them look the same to a scheduler and keep the statistics.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from repoagent.config import ModelConfig
from repoagent.config.model_config_pb2 import ModelInstanceGroup
from repoagent.errors import InternalError, RepoAgentError
from repoagent.serving.instances.backend import Capability, InstanceSpec
from repoagent.serving.instances.batches import Batch
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.measuring.latencies import RunTime
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import InferRequest, InferResponse

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class VersionContext:
    """One version of a model: its name and configuration, which is complete, and where its numbers are kept."""

    name: str
    version: int
    config: ModelConfig
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    run_time: RunTime = field(default_factory=RunTime)
    """How long executions take, on whichever instance."""

    @property
    def batching(self) -> bool:
        """Whether the first dimension of its tensors is a batch."""
        return bool(self.config.max_batch_size > 0)

    @property
    def decoupled(self) -> bool:
        """Whether it sends any number of responses to a request."""
        return bool(self.config.model_transaction_policy.decoupled)


GivenBack = Callable[[Sequence[InferRequest]], None]
"""Takes requests that were not executed, as they had come. It may be called on any thread."""


def instance_specs(config: ModelConfig) -> list[InstanceSpec]:
    """The instances that the groups of a complete configuration ask for, with Triton's names ``GROUP_NUMBER``."""
    return [spec for group in config.instance_group for spec in group_specs(group)]


def group_specs(group: ModelInstanceGroup) -> list[InstanceSpec]:
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


class Instance:
    """What a scheduler drives; never from two threads at once. A base class: ``capabilities`` state what is worth
    asking of it besides :meth:`call` and :meth:`execute`."""

    capabilities = Capability.NONE
    run_time: RunTime
    """How long executions take, usually the same object in all instances of a model."""

    def call(self, request: InferRequest) -> InferResponse:
        """Execute one request and return its answer; its sender is not used. Raises ``RepoAgentError`` if the request
        failed."""
        raise NotImplementedError

    def execute(self, requests: Sequence[InferRequest]) -> None:
        """Answer every request through its sender, all as one batch if the model batches. Never raises."""
        raise NotImplementedError

    def rehearse(self, request: InferRequest) -> None:
        """Execute one request for its side effects only; nothing is counted. Raises as :meth:`call` does."""
        raise NotImplementedError

    def close(self) -> None:
        """Let go of everything; no request is running."""
        raise NotImplementedError

    # -- Capability.STAGED: prepare and answer may be called on any thread while another one runs, and one instance may
    # -- run what another one of the same model prepared. None of them raises: what goes wrong is the answer.

    def prepare(self, requests: Sequence[InferRequest]) -> Batch:
        """Make a batch of ``requests``."""
        return Batch(requests)

    def run(self, batch: Batch) -> None:
        """Execute ``batch``. What is not executed together is answered at once."""
        self.execute(batch.requests)

    def answer(self, batch: Batch) -> None:
        """Answer the requests of ``batch``, which has been run."""

    # -- Capability.OVERLAPS: a run has two halves, of which the second waits for a device. Between them the next batch
    # -- may begin. Batches end in the order in which they have begun. Neither half raises.

    def begin(self, batch: Batch) -> None:
        """Let the device begin with ``batch``; at most two have begun and not ended."""

    def end(self, batch: Batch) -> None:
        """Wait until ``batch``, which has begun, is done."""
        self.run(batch)

    # -- Capability.TAKES_SEVERAL ------------------------------------------------------------------------------------

    @property
    def ahead(self) -> int:
        """How many requests :meth:`execute_each` should get at the moment."""
        return 1

    @property
    def ready_for_loop(self) -> bool:
        """Whether :meth:`begin_each` is worth calling at the moment."""
        return False

    def execute_each(self, requests: Sequence[InferRequest], give_back: GivenBack) -> None:
        """Answer every request through its sender, each executed by itself, or give it back. Never raises."""
        for request in requests:
            self.execute((request,))

    def begin_each(
        self, requests: Sequence[InferRequest], give_back: GivenBack, ended: Callable[[], None], reader: LoopReader
    ) -> None:
        """The same without waiting, on the thread of ``reader``. Never raises.

        ``ended`` is called, on any thread, once the instance is free again; answers may come after that.
        """
        give_back(requests)
        ended()


def close_all(instances: Iterable[Instance]) -> None:
    """Close every one, also if one raises. Those that close slowly do so together: their time limits start now."""
    together: list[threading.Thread] = []
    for instance in instances:
        if Capability.CLOSES_SLOWLY in instance.capabilities:
            thread = threading.Thread(target=_close, args=(instance,), name="repoagent-close-instance", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # The machine has no thread left.
                _close(instance)
            else:
                together.append(thread)
        else:
            _close(instance)
    for thread in together:
        thread.join()


def _close(instance: Instance) -> None:
    try:
        instance.close()
    except Exception:
        logger.exception("an instance of a model cannot be closed")


def join_all(threads: Iterable[threading.Thread]) -> None:
    """Wait until all have ended, but not for long: a request that never ends must not hang the unload."""
    end = time.monotonic() + _PATIENCE_SECONDS
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
