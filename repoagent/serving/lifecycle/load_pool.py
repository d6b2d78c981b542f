"""Threads for loads and unloads: a bounded number of them at work, none when there is nothing to do."""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

__all__ = ["LoadPool", "Submitter"]


class Submitter(Protocol):
    """What runs a job on another thread."""

    def submit(self, job: Callable[[], None], /) -> object: ...


class LoadPool:
    """At most ``size`` jobs are at work at once. A job that waits for other jobs does not count as long as it waits."""

    def __init__(self, size: int) -> None:
        self._size = size
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
            RuntimeError: :meth:`close` was called.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("no further loads and unloads: the pool is closed")
            self._jobs.append(job)
            self._start_threads()

    def _start_threads(self) -> None:
        # Threads end when there is nothing to do, so each that runs and does not wait has a job already.
        while self._jobs and self._threads - self._waiting < self._size:
            self._threads += 1
            self._named += 1
            job = self._jobs.popleft()
            name = f"repoagent-load-{self._named}"
            threading.Thread(target=self._work, args=(job,), name=name, daemon=True).start()

    def _work(self, job: Callable[[], None]) -> None:
        following: Callable[[], None] | None = job
        while following is not None:
            try:
                following()
            finally:
                following = self._next()

    def _next(self) -> Callable[[], None] | None:
        with self._lock:
            if self._jobs and self._threads - self._waiting <= self._size:
                return self._jobs.popleft()
            self._threads -= 1
            self._idle.notify_all()
            return None

    @contextmanager
    def pausing(self) -> Iterator[None]:
        """Entered by a job while it waits for other jobs: another one may run in its place."""
        with self._lock:
            self._waiting += 1
            self._start_threads()
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
