"""Threads for loads and unloads: a bounded number of them at work, none when there is nothing to do."""

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final, Protocol

from repoagent.errors import UnavailableError

__all__ = ["LoadPool", "Submitter", "pausing"]

logger = logging.getLogger(__name__)

_own_pool: Final[ContextVar["LoadPool | None"]] = ContextVar("repoagent_load_pool", default=None)
"""The pool that the present thread belongs to."""


class Submitter(Protocol):
    """What runs a job on another thread."""

    def submit(self, job: Callable[[], None], /) -> object: ...


class LoadPool:
    """At most ``size`` jobs are at work at once. A job that waits for other jobs does not count as long as it waits.

    ``on_idle`` is called by the last thread before it ends, when there is nothing more to do.
    """

    def __init__(self, size: int, on_idle: Callable[[], object] = lambda: None) -> None:
        self._size = size
        self._on_idle = on_idle
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._jobs: deque[Callable[[], None]] = deque()
        self._threads = 0
        self._waiting = 0
        self._named = 0
        self._closed = False

    def submit(self, job: Callable[[], None], /) -> None:
        """Run ``job``, which must not raise, when it is its turn.

        Raises:
            UnavailableError: :meth:`close` was called, or the machine has no thread for it; ``job`` will not run.
        """
        with self._lock:
            if self._closed:
                raise UnavailableError("no further loads and unloads: the server has stopped")
            self._jobs.append(job)
            try:
                self._start_threads()
            except UnavailableError:
                self._jobs.remove(job)
                raise

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
        following: Callable[[], None] | None = job
        while following is not None:
            try:
                following()
            except BaseException:
                logger.exception("a job of the pool raised")
            following = self._next()
        if not self._threads:
            self._on_idle()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._jobs and self._threads - self._waiting <= self._size:
                return self._jobs.popleft()
            self._threads -= 1
            self._idle.notify_all()
            return None

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


@contextmanager
def pausing() -> Iterator[None]:
    """Entered by a job while it waits for other jobs: another one may run in its place, in the pool that it is in.

    Raises:
        UnavailableError: the machine has no thread for another one, so that the job might wait forever.
    """
    pool = _own_pool.get()
    if pool is None:
        yield
        return
    with pool.paused():
        yield
