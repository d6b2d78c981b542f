"""Instances whose executions wait for resources, and the pool that has them wait."""

from collections.abc import Iterable, Sequence

from repoagent.serving.instances.backend import Capability
from repoagent.serving.instances.base import Instance
from repoagent.serving.instances.instance_pool import InstancePool
from repoagent.serving.measuring.run_time import unpredictable
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.scheduling.rate_limiter import Ticket

__all__ = ["LimitedInstance", "LimitedPool", "new_pool"]


class LimitedInstance(Instance):
    """``inner``, which may execute only while someone has what ``ticket`` stands for: see :class:`LimitedPool`."""

    def __init__(self, inner: Instance, ticket: Ticket) -> None:
        self.inner = inner
        self.ticket = ticket
        self.capabilities = Capability.RATE_LIMITED | inner.capabilities & Capability.CLOSES_SLOWLY
        self.run_time = unpredictable()  # However quick the model is: no one knows how long it has to wait.

    def call(self, request: InferRequest) -> InferResponse:
        self.ticket.executions += 1
        return self.inner.call(request)

    def execute(self, requests: Sequence[InferRequest]) -> None:
        self.ticket.executions += 1
        self.inner.execute(requests)

    def rehearse(self, request: InferRequest) -> None:
        with self.ticket.held():
            self.inner.rehearse(request)

    def close(self) -> None:
        self.ticket.close()
        self.inner.close()


class LimitedPool(InstancePool[Instance]):
    """Gives an instance when its resources are there as well.

    So requests wait in the queue of their scheduler, where timeouts, cancellations and priorities are looked after, and
    where more may come to share the execution.
    """

    for_one = True

    def take(self, timeout: float | None = None, request: InferRequest | None = None) -> Instance | None:
        """See :class:`InstancePool`; None also when the pool is closed. Only workers take, who wait for both."""
        instance = super().take(timeout, request)
        if not isinstance(instance, LimitedInstance) or instance.ticket.take():
            return instance
        super().give(instance)
        return None

    def take_idle(self) -> None:
        """None: a worker executes, so that who waits for an answer gives up in time."""

    def retake(self, item: Instance) -> bool:
        return isinstance(item, LimitedInstance) and item.ticket.take()

    def give(self, item: Instance) -> None:
        if isinstance(item, LimitedInstance):
            item.ticket.give()
        super().give(item)

    def close(self) -> None:
        for instance in self.items:
            if isinstance(instance, LimitedInstance):
                instance.ticket.close()


def new_pool(instances: Iterable[Instance]) -> InstancePool[Instance]:
    """The pool for ``instances``."""
    instances = tuple(instances)
    limited = any(Capability.RATE_LIMITED in instance.capabilities for instance in instances)
    return LimitedPool(instances) if limited else InstancePool(instances)
