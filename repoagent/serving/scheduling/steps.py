"""The scheduler's parts: time, requests that wait and for how long, what to do next, the thread that watches them."""

import enum
import heapq
import itertools
import logging
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

logger = logging.getLogger(__name__)


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


def start_workers(threads: list[threading.Thread], count: int, work: Callable[[], None], name: str) -> None:
    """Start threads that ``work`` until there are ``count`` of them, or the machine has none left."""
    for index in range(len(threads), count):
        thread = threading.Thread(target=work, name=f"{name}-{index}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            logger.warning("%s gets no thread more (%s)", name, error)
            return
        threads.append(thread)


_PATIENCE_SECONDS: Final = 1.0


class Watched(Protocol):
    """Requests that wait. All is called with the scheduler's lock held."""

    @property
    def deadline_ns(self) -> int | None:
        """When :meth:`expire` is to be called next; None: not by itself."""

    def expire(self, now_ns: int) -> Sequence[Refusal]:
        """Take out what has waited too long by now; :attr:`deadline_ns` is later then, or None."""

    def sweep(self) -> Sequence[Refusal]:
        """Take out what was cancelled."""


class Watcher:
    """Has ``watched`` give out requests that waited too long or were cancelled, and ``refuser`` answer them.

    One sweep is enough for all that were cancelled meanwhile. ``lock`` is that of the scheduler.
    """

    def __init__(self, name: str, lock: threading.Lock, clock: Clock, watched: Watched, refuser: Refuser) -> None:
        self._name = name
        self._changed = threading.Condition(lock)
        self._clock = clock
        self._watched = watched
        self._refuser = refuser
        self._armed_ns: int | None = None
        self._cancelled = False
        self._thread: threading.Thread | None = None
        self._stopped = False

    def notice(self) -> None:
        """What is due may have changed. Call it with the lock held."""
        due = self._watched.deadline_ns
        if due is None or self._stopped:
            return
        if self._thread is None:
            self._start()
        elif self._armed_ns is None or due < self._armed_ns:
            self._changed.notify()

    def on_cancel(self) -> None:
        """For :attr:`InferRequest.on_cancel`. Call it without the lock."""
        with self._changed:
            if self._stopped:
                return
            self._cancelled = True
            if self._thread is None:
                self._start()
            else:
                self._changed.notify()

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._watch, name=self._name, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._stopped:
            self._refuse_all(self._wait())

    def _refuse_all(self, refusals: Sequence[Refusal]) -> None:
        # A function of its own: while the thread waits, it keeps no refused request in memory.
        for refusal in refusals:
            self._refuser.answer(refusal)

    def _wait(self) -> Sequence[Refusal]:
        with self._changed:
            while not self._stopped:
                now = self._clock.now_ns()
                if self._cancelled:
                    self._cancelled = False
                    return self._watched.sweep()
                self._armed_ns = self._watched.deadline_ns
                if self._armed_ns is not None and self._armed_ns <= now:
                    return self._watched.expire(now)
                self._clock.wait(self._changed, self._armed_ns)
        return ()

    def stop(self) -> None:
        """End the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join(_PATIENCE_SECONDS)
