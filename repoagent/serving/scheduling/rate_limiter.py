"""The rate limiter: an execution waits until the resources that its instance group names are free, as in Triton."""

import heapq
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from repoagent.config.model_config_pb2 import ModelRateLimiter
from repoagent.errors import InvalidArgumentError, UnavailableError
from repoagent.serving.instances.backend import Capability
from repoagent.serving.instances.instance import Instance
from repoagent.serving.instances.instance_pool import InstancePool
from repoagent.serving.measuring.latencies import unpredictable
from repoagent.serving.requests.request import InferRequest, InferResponse

EVERY_DEVICE: Final = -1
_GLOBAL: Final = -2

_Key = tuple[int, str]
"""A device, or :data:`_GLOBAL`, and the name of a resource."""


@dataclass(slots=True)
class RateLimiterResource:
    """``count`` units of a resource that the operator gives, on ``device``; -1 means each device."""

    name: str
    count: int
    device: int = EVERY_DEVICE
    """It means nothing for a resource that models call global."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What an instance needs for an execution, and how it stands behind others that wait."""

    resources: Mapping[_Key, int]
    priority: int = 1
    """One of priority 2 gets half as many executions as one of priority 1."""

    @classmethod
    def of(cls, settings: ModelRateLimiter, device: int) -> "Demand | None":
        """What an instance group asks for, for an instance on ``device``; None if it needs nothing."""
        resources = {
            (_GLOBAL if getattr(item, "global") else device, item.name): item.count  # It is a word of Python's.
            for item in settings.resources
        }
        return cls(resources, max(1, settings.priority)) if resources else None


class Ticket:
    """The place of one instance at the limiter. Used by one thread at a time, the one that has the instance."""

    def __init__(self, limiter: "RateLimiter", demand: Demand, number: int) -> None:
        self.demand = demand
        self.number = number
        self.executions = 0
        """Counted by who executes."""
        self.woken = threading.Event()
        """It may go on, or it waits for nothing any more, as it is closed."""
        self.granted = False
        self.closed = False
        self._limiter = limiter

    @property
    def turn(self) -> tuple[int, int]:
        """Of the tickets that wait, that with the lowest is next."""
        return self.executions * self.demand.priority, self.number

    def take(self) -> bool:
        """Wait for the resources, which are the caller's until :meth:`give`; False if :meth:`close` was called.

        A caller that has them gives them back and waits again before any other is granted some.
        """
        self._limiter.stand_in_line(self)
        self.woken.wait()
        return self.granted

    def give(self) -> None:
        """Give the resources back, if it has them."""
        self._limiter.release(self)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have the resources for as long as the block takes; wait for them before. ``UnavailableError`` once
        :meth:`close` was called."""
        if not self.take():
            raise UnavailableError("the model is unloaded")
        try:
            yield
        finally:
            self.executions += 1
            self.give()

    def close(self) -> None:
        """The instance goes: it needs nothing any more, and a thread that waits for it may stop."""
        self._limiter.remove(self)


class RateLimiter:
    """The resources of a server. Every method may be called from any thread.

    There is as much of each as ``resources`` state; where they are empty, as much as the instance needs that
    needs most.
    """

    def __init__(self, resources: Iterable[RateLimiterResource] = ()) -> None:
        self._given = tuple(resources)
        self._lock = threading.Lock()
        self._tickets: set[Ticket] = set()
        self._numbers = itertools.count()
        self._limits: dict[_Key, int] = {}
        self._used: dict[_Key, int] = defaultdict(int)
        self._line: list[tuple[tuple[int, int], Ticket]] = []

    def ticket(self, demand: Demand) -> Ticket:
        """A place for a new instance. Raises ``InvalidArgumentError`` if there will never be as much as it needs, or a
        resource is both global and not."""
        with self._lock:
            ticket = Ticket(self, demand, next(self._numbers))
            tickets = {*self._tickets, ticket}
            self._limits = self._count([known.demand.resources for known in tickets])
            self._tickets = tickets
        return ticket

    def _count(self, demands: Sequence[Mapping[_Key, int]]) -> dict[_Key, int]:
        most: dict[_Key, int] = {}
        for demand in demands:
            for key, count in demand.items():
                most[key] = max(count, most.get(key, 0))
        everywhere = {name for device, name in most if device == _GLOBAL}
        for device, name in most:
            if device != _GLOBAL and name in everywhere:
                raise InvalidArgumentError(
                    f'Resource "{name}" is present as both global and device-specific resource in the model '
                    "configuration."
                )
        return {key: self._limit(key, count) for key, count in most.items()} if self._given else most

    def _limit(self, key: _Key, needed: int) -> int:
        device, name = key
        limit = max(
            (
                item.count
                for item in self._given
                if item.name == name and (device == _GLOBAL or item.device in (device, EVERY_DEVICE))
            ),
            default=0,
        )
        if limit < needed:
            raise InvalidArgumentError(
                f'Resource count for "{name}" is limited to {limit} which will prevent scheduling of one or more model '
                f"instances, the minimum required count is {needed}"
            )
        return limit

    def stand_in_line(self, ticket: Ticket) -> None:
        with self._lock:
            self._free(ticket)
            if not ticket.closed:
                ticket.woken.clear()
                heapq.heappush(self._line, (ticket.turn, ticket))
            self._grant()

    def release(self, ticket: Ticket) -> None:
        with self._lock:
            self._free(ticket)
            self._grant()

    def _free(self, ticket: Ticket) -> None:
        if ticket.granted:
            for key, count in ticket.demand.resources.items():
                self._used[key] -= count
            ticket.granted = False

    def _grant(self) -> None:
        """Let those go on whose turn it is, up to the first for whom there is not enough: none passes it."""
        while self._line:
            ticket = self._line[0][1]
            resources = ticket.demand.resources
            if any(self._used[key] + count > self._limits[key] for key, count in resources.items()):
                return
            heapq.heappop(self._line)
            for key, count in resources.items():
                self._used[key] += count
            ticket.granted = True
            ticket.woken.set()

    def remove(self, ticket: Ticket) -> None:
        with self._lock:
            ticket.closed = True
            self._tickets.discard(ticket)
            limits = self._count([known.demand.resources for known in self._tickets])
            # What is still in use belongs to executions that go on; their keys must stay known until they end.
            self._limits = {**{key: limit for key, limit in self._limits.items() if self._used[key]}, **limits}
            self._line = [place for place in self._line if place[1] is not ticket]
            heapq.heapify(self._line)
            self._grant()  # No one passed it while it waited.
            ticket.woken.set()


class LimitedInstance(Instance):
    """``inner``, which may execute only while the caller has what ``ticket`` stands for: see :class:`LimitedPool`."""

    def __init__(self, inner: Instance, ticket: Ticket) -> None:
        self.inner = inner
        self.ticket = ticket
        self.capabilities = Capability.RATE_LIMITED | inner.capabilities & Capability.CLOSES_SLOWLY
        self.run_time = unpredictable()  # However quick the model is: it is unknown how long it has to wait.

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
        """None: a worker executes, so that a caller that waits gives up in time."""

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
    instances = tuple(instances)
    limited = any(Capability.RATE_LIMITED in instance.capabilities for instance in instances)
    return LimitedPool(instances) if limited else InstancePool(instances)
