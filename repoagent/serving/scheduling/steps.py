"""What travels between the parts of a scheduler: time, requests that wait and for how long, what to do next."""

import enum
import heapq
import itertools
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeVar

from repoagent.errors import CancelledError, OverloadedError, RepoAgentError, UnavailableError
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.measuring.statistics import FailureReason, ModelStatistics
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.senders import answer_error


class Clock:
    """The clock of the machine. A test may let another one stand still and move it on."""

    def now_ns(self) -> int:
        """The time now; comparable with ``InferRequest.arrival_ns``."""
        return time.monotonic_ns()

    def wait(self, condition: threading.Condition, until_ns: int | None) -> None:
        """Wait until ``condition``, whose lock is held, is notified or it is ``until_ns``; None: forever.

        It may return earlier than that: look again.
        """
        condition.wait(None if until_ns is None else max(0, until_ns - time.monotonic_ns()) / 1e9)


T = TypeVar("T")

TOLERATED: Final = 64
"""So many that have left are kept in memory without a thought."""


class Deadlines(Generic[T]):
    """Items by the time at which their waiting is over. Not thread-safe. ``waits`` returns whether one still waits."""

    def __init__(self, waits: Callable[[T], bool]) -> None:
        self._waits = waits
        self._heap: list[tuple[int, int, T]] = []
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, deadline_ns: int, item: T, waiting: int) -> None:
        """Take note of ``item``; about ``waiting`` items wait altogether."""
        # Those that have left before their time would be kept in memory, with their requests.
        if len(self._heap) > 2 * waiting + TOLERATED:
            self._heap = [place for place in self._heap if self._waits(place[2])]
            heapq.heapify(self._heap)
        heapq.heappush(self._heap, (deadline_ns, next(self._numbers), item))

    def over(self, now_ns: int) -> list[T]:
        """Take out the items that still wait and whose time is over."""
        found = []
        while self._heap and self._heap[0][0] <= now_ns:
            item = heapq.heappop(self._heap)[2]
            if self._waits(item):
                found.append(item)
        return found

    @property
    def next_ns(self) -> int | None:
        """When the next item's time is over."""
        while self._heap and not self._waits(self._heap[0][2]):
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None


class EntryState(enum.Enum):
    """Where an entry is: WAITING -> (DELAYED ->) GONE."""

    WAITING = "waiting"
    DELAYED = "delayed"
    """Its time was over, and the policy lets it wait on behind the others of its level."""
    GONE = "gone"
    """Taken into a batch, or refused."""


@dataclass(slots=True, eq=False)
class Entry:
    """A request that waits."""

    request: InferRequest
    size: int
    """How many inferences it asks for, at least 1."""
    enqueued_ns: int
    key: Hashable = None
    """Requests with different keys must not share a batch."""
    level: int = 0
    state: EntryState = EntryState.WAITING
    reader: LoopReader | None = None
    """The event loop that it came on, if that takes answers of processes itself."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """A request that will not be executed, and why."""

    request: InferRequest
    error: RepoAgentError
    reason: FailureReason

    @classmethod
    def cancelled(cls, request: InferRequest) -> "Refusal":
        """For a request that was given up while it waited."""
        return cls(request, CancelledError("request cancelled"), FailureReason.CANCELED)

    @classmethod
    def expired(cls, request: InferRequest, text: str = "Request timeout expired") -> "Refusal":
        """For a request that waited too long."""
        return cls(request, UnavailableError(text), FailureReason.REJECTED)

    @classmethod
    def full(cls, request: InferRequest) -> "Refusal":
        """For a request that found the queue full."""
        text = f"[request id: {request.asked.id or '<id_unknown>'}] Exceeds maximum queue size"
        return cls(request, OverloadedError(text), FailureReason.REJECTED)

    @classmethod
    def unloaded(cls, request: InferRequest, model_name: str) -> "Refusal":
        """For a request that still waits when its model goes."""
        return cls(request, UnavailableError(f"model '{model_name}' is unloaded"), FailureReason.OTHER)


class Refuser:
    """The one place where a scheduler turns requests away."""

    def __init__(self, statistics: ModelStatistics, clock: Clock) -> None:
        self._statistics = statistics
        self._clock = clock

    def count(self, refusal: Refusal) -> RepoAgentError:
        """Count ``refusal`` and return its error for a caller that waits."""
        self._statistics.record_failure(refusal.request.arrival_ns, self._clock.now_ns(), refusal.reason)
        return refusal.error

    def answer(self, refusal: Refusal) -> None:
        """Count ``refusal`` and answer the request with it."""
        answer_error(refusal.request, self.count(refusal))


@dataclass(frozen=True, slots=True)
class Step:
    """What to do now. With nothing to do, ``wake_ns`` is when to look again if nothing happens before."""

    batch: Sequence[InferRequest] = ()
    refusals: Sequence[Refusal] = ()
    wake_ns: int | None = None


NOTHING = Step()


class BatchSource(Protocol):
    """Where workers get batches from. Not thread-safe: callers hold the scheduler's lock."""

    def __len__(self) -> int:
        """How many requests wait; 0 means that :meth:`next` has nothing to do."""

    @property
    def ripe(self) -> bool:
        """Whether :meth:`next` may find more to do than when it last returned a time to wait for."""

    def next(self, now_ns: int) -> Step:
        """Take the next batch out, if one is ready, and the requests found that must be refused."""

    def drain(self) -> list[InferRequest]:
        """Take everything out."""
