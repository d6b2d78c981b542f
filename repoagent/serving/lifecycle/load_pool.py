"""Threads for loads and unloads: a bounded number of them at work, none when there is nothing to do."""

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, InvalidStateError
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from functools import cache, partial
from typing import Final, Generic, TypeVar

from repoagent.audit import acting_as, current_actor
from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.limits import Limits

logger = logging.getLogger(__name__)

_LEAST_WAIT_SECONDS: Final = 0.05
DELAY_SECONDS: Final = 0.2
"""Looking for free memory takes longer the more there is in use: once after many unloads, not after each."""
_sleeper: Final = threading.Lock()

_own_pool: Final[ContextVar["LoadPool | None"]] = ContextVar("repoagent_load_pool", default=None)
"""The pool that the present thread belongs to."""


class LoadPool:
    """At most ``size`` jobs are at work at once. A job that waits for other jobs does not count as long as it waits.

    Nor does one that has taken longer than ``patience_seconds`` (0: forever): jobs that never end take no thread from
    others for longer than that, whatever they belong to.

    ``on_idle`` is called by the last thread before it ends, when there is nothing more to do.
    """

    def __init__(self, size: int, on_idle: Callable[[], object] = lambda: None, *, patience_seconds: float = 0) -> None:
        self._size = size
        self._patience = patience_seconds
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._jobs: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._waiting = 0
        self._begun: dict[object, float] = {}
        """When the jobs at work began (``time.monotonic``), by a mark of their threads; not of late ones."""
        self._late: set[object] = set()
        self._watching = False
        self._named = 0
        self._closed = False

    def submit(self, job: Callable[[], None], /) -> None:
        """Run ``job``, which must not raise, when it is its turn; never if this raises ``UnavailableError``: the pool
        is closed, or the machine has no thread for it."""
        with self._lock:
            if self._closed:
                raise UnavailableError("no further loads and unloads: the server has stopped")
            self._jobs.append(job)
            try:
                self._start_threads()
            except UnavailableError:
                self._jobs.remove(job)
                raise
            self._watch_if_needed()

    def _start_threads(self) -> None:
        """Start what may run beside what runs. Raises UnavailableError if nothing runs then that would take a job."""
        # Threads end when there is nothing to do, so each that runs and does not wait has a job already.
        while self._jobs and self._threads - self._waiting < self._size:
            try:
                self._start_thread(self._jobs[0])
            except RuntimeError as error:
                if self._threads - self._waiting < 1:
                    raise UnavailableError(f"no thread for a load or an unload can be started: {error}") from error
                logger.warning("no thread for a load or an unload can be started (%s): it waits for another", error)
                return
            self._jobs.popleft()

    def _start_thread(self, job: Callable[[], None]) -> None:
        name = f"repoagent-load-{self._named + 1}"
        threading.Thread(target=self._work, args=(job,), name=name, daemon=True).start()
        self._threads += 1
        self._named += 1

    def _work(self, job: Callable[[], None]) -> None:
        _own_pool.set(self)
        mark = object()
        following: Callable[[], None] | None = job
        while following is not None:
            if self._patience:
                with self._lock:
                    self._begun[mark] = time.monotonic()
            try:
                following()
            except BaseException:
                logger.exception("a job of the pool raised")
            following = self._next(mark)
        if not self._threads:
            self._on_idle()

    def _next(self, mark: object) -> Callable[[], None] | None:
        with self._lock:
            self._end_job(mark)
            if self._jobs and self._threads - self._waiting <= self._size:
                return self._jobs.popleft()
            self._threads -= 1
            self._idle.notify_all()
            return None

    def _end_job(self, mark: object) -> None:
        self._begun.pop(mark, None)
        if mark in self._late:
            self._late.remove(mark)
            self._waiting -= 1

    # -- jobs that take too long ------------------------------------------------------------------------------------

    def _watch_if_needed(self) -> None:
        """Have a thread look at the jobs at work while others wait for them."""
        if self._jobs and self._patience and not self._watching:
            try:
                threading.Thread(target=self._watch, name="repoagent-load-watch", daemon=True).start()
            except RuntimeError:  # The machine has no thread left; the next job tries again.
                return
            self._watching = True

    def _watch(self) -> None:
        with self._lock:
            while self._jobs and not self._closed:
                now = time.monotonic()
                for mark in [it for it, begun in self._begun.items() if begun + self._patience <= now]:
                    del self._begun[mark]
                    self._late.add(mark)
                    self._waiting += 1
                    logger.warning(
                        "a load has taken longer than %g seconds: it goes on, and others do not wait for its thread "
                        "(%s)",
                        self._patience,
                        Limits.flag("load_thread_seconds"),
                    )
                try:
                    self._start_threads()
                except UnavailableError as error:
                    logger.warning("%s", error)
                oldest = min(self._begun.values(), default=now)
                self._idle.wait(max(_LEAST_WAIT_SECONDS, oldest + self._patience - now))
            self._watching = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        """See :func:`pausing`; for a job of this pool."""
        with self._lock:
            self._waiting += 1
            try:
                self._start_threads()
            except UnavailableError:
                self._waiting -= 1
                raise
        try:
            yield
        finally:
            with self._lock:
                self._waiting -= 1

    def close(self, *, wait: bool) -> None:
        """Take no further jobs; wait for those that there are and that they submit, or drop what has not begun."""
        with self._lock:
            if wait:
                self._idle.wait_for(lambda: not self._threads and not self._jobs)
            self._closed = True
            self._jobs.clear()


def pausing() -> AbstractContextManager[None]:
    """Entered by a job while it waits for other jobs: another one may run in its place, in the same pool.
    ``UnavailableError`` if the machine has no thread for that: the job might wait forever."""
    pool = _own_pool.get()
    return nullcontext() if pool is None else pool.paused()


T = TypeVar("T")


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T], urgent: bool) -> None:
        self._work = work
        self._actor = current_actor()
        self.urgent = urgent
        self.future: Future[T] = Future()

    def run(self) -> None:
        if self.future.done() or not self.future.set_running_or_notify_cancel():
            return
        try:
            with acting_as(self._actor):
                result = self._work()
        except BaseException as error:
            self.fail(error)
        else:
            with suppress(InvalidStateError):  # Given up meanwhile.
                self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        with suppress(InvalidStateError):
            self.future.set_exception(error)


class SerialQueue:
    """A first-in first-out queue of jobs over a shared pool. A waiting job occupies no thread of the pool.

    Up to and including an urgent job the queue does not wait for its turn there, but in the pool ``urgent``, if there
    is one. Every job ends: it is done, or its future has the error that kept it from being done.
    """

    def __init__(self, pool: LoadPool, urgent: LoadPool | None = None) -> None:
        self._pool = pool
        self._urgent = urgent or pool
        self._lock = threading.Lock()
        self._jobs: deque[_Job[object]] = deque()
        self._at_work: _Job[object] | None = None
        self._ticket = 0
        """Of the latest turn that was asked for; earlier ones that have not come yet are void."""
        self._due = False

    def submit(self, work: Callable[[], T], *, urgent: bool = False) -> "Future[T]":
        """Do ``work`` when everything submitted before has been done; never if this raises ``UnavailableError``."""
        job = _Job(work, urgent)
        with self._lock:
            self._jobs.append(job)  # type: ignore[arg-type]
            if self._at_work is None and (urgent or not self._due):
                try:
                    self._ask_for_turn()
                except RepoAgentError:
                    if not self._due:  # Else an earlier turn comes, if not in the urgent pool.
                        self._jobs.pop()
                        raise
        return job.future

    def _ask_for_turn(self) -> None:
        """Raises UnavailableError if neither pool takes it; then the turn that was asked for before still counts."""
        turn = partial(self._run_next, self._ticket + 1)
        pools = (self._pool, self._urgent)
        first, second = reversed(pools) if any(job.urgent for job in self._jobs) else pools
        try:
            first.submit(turn)
        except RepoAgentError:  # The thread that asks may be one of the other pool, which needs no further one then.
            second.submit(turn)
        self._ticket += 1
        self._due = True

    def _run_next(self, ticket: int) -> None:
        with self._lock:
            if ticket != self._ticket:
                return
            self._due = False
            job = self._at_work = self._jobs.popleft()
        try:
            job.run()
        finally:
            with self._lock:
                self._at_work = None
                dropped = self._go_on()
            for job, error in dropped:
                job.fail(error)

    def _go_on(self) -> "list[tuple[_Job[object], RepoAgentError]]":
        """Ask for the next turn. Returns the jobs that will never have one, each with the reason."""
        try:
            if self._jobs:
                self._ask_for_turn()
        except RepoAgentError as error:
            dropped = [(job, error) for job in self._jobs]
            self._jobs.clear()
            return dropped
        return []

    def abandon(self, error: RepoAgentError) -> None:
        """End all futures that are not done with ``error``: nothing waits for what does not end."""
        with self._lock:
            jobs = [*([self._at_work] if self._at_work is not None else []), *self._jobs]
            self._jobs.clear()
            self._due = False
            self._ticket += 1
        for job in jobs:
            job.fail(error)


def give_back_soon() -> None:
    """Give freed memory back after a while, where the C library can; returns at once if another thread is about to.

    For a thread that has nothing else to do.
    """
    if _sleeper.acquire(blocking=False):
        try:
            time.sleep(DELAY_SECONDS)
        finally:
            _sleeper.release()  # What is freed from here on is for the next one.
        _trim()(0)


@cache
def _trim() -> Callable[[int], object]:
    trim: Callable[[int], object] = getattr(ctypes.CDLL(None), "malloc_trim", lambda _: None)
    return trim
