"""Doing the jobs of one model one after the other, and those of different models at once, on a bounded pool."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Generic, TypeVar

from repoagent.serving.lifecycle.load_pool import Submitter

__all__ = ["SerialQueue"]

T = TypeVar("T")


class _Job(Generic[T]):
    def __init__(self, work: Callable[[], T], urgent: bool) -> None:
        self._work = work
        self.urgent = urgent
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
    """A first-in first-out line of jobs over a shared pool. A waiting job occupies no thread of the pool.

    Up to and including an urgent job the line does not wait for its turn there, but in the pool ``urgent``, if there
    is one.
    """

    def __init__(self, pool: Submitter, urgent: Submitter | None = None) -> None:
        self._pool = pool
        self._urgent = urgent or pool
        self._lock = threading.Lock()
        self._jobs: deque[_Job[object]] = deque()
        self._at_work = False
        self._ticket = 0
        """Of the latest turn that was asked for; earlier ones that have not come yet are void."""
        self._due = False

    def submit(self, work: Callable[[], T], *, urgent: bool = False) -> "Future[T]":
        """Do ``work`` when everything submitted before has been done."""
        job = _Job(work, urgent)
        with self._lock:
            self._jobs.append(job)  # type: ignore[arg-type]
            if not self._at_work and (urgent or not self._due):
                self._ask_for_turn()
        return job.future

    def _ask_for_turn(self) -> None:
        self._ticket += 1
        self._due = True
        pool = self._urgent if any(job.urgent for job in self._jobs) else self._pool
        pool.submit(partial(self._run_next, self._ticket))

    def _run_next(self, ticket: int) -> None:
        with self._lock:
            if ticket != self._ticket:
                return
            self._at_work, self._due = True, False
            job = self._jobs.popleft()
        try:
            job.run()
        finally:
            with self._lock:
                self._at_work = False
                if self._jobs:
                    self._ask_for_turn()
