"""Doing the jobs of one model one after the other, and those of different models at once, on a bounded pool."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from repoagent.serving.load_pool import Submitter

__all__ = ["SerialQueue"]

T = TypeVar("T")


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.future: Future[T] = Future()

    def run(self) -> None:
        if not self.future.set_running_or_notify_cancel():
            return
        try:
            result = self._work()
        except BaseException as error:
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


class SerialQueue:
    """A first-in first-out line of jobs over a shared pool. A waiting job occupies no thread of the pool."""

    def __init__(self, pool: Submitter) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._jobs: deque[_Job[object]] = deque()
        self._running = False

    def submit(self, work: Callable[[], T]) -> "Future[T]":
        """Do ``work`` when everything submitted before has been done."""
        job = _Job(work)
        with self._lock:
            self._jobs.append(job)  # type: ignore[arg-type]
            if self._running:
                return job.future
            self._running = True
        self._pool.submit(self._run_next)
        return job.future

    def _run_next(self) -> None:
        with self._lock:
            job = self._jobs.popleft()
        try:
            job.run()
        finally:
            with self._lock:
                self._running = bool(self._jobs)
                if self._running:
                    self._pool.submit(self._run_next)
