"""Doing the jobs of one model one after the other, and those of different models at once, on a bounded pool."""

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

from repoagent.audit import acting_as, current_actor
from repoagent.errors import RepoAgentError
from repoagent.serving.lifecycle.load_pool import Submitter

__all__ = ["SerialQueue"]

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
    """A first-in first-out line of jobs over a shared pool. A waiting job occupies no thread of the pool.

    Up to and including an urgent job the line does not wait for its turn there, but in the pool ``urgent``, if there
    is one. Every job ends: it is done, or its future has the error that kept it from being done.
    """

    def __init__(self, pool: Submitter, urgent: Submitter | None = None) -> None:
        self._pool = pool
        self._urgent = urgent or pool
        self._lock = threading.Lock()
        self._jobs: deque[_Job[object]] = deque()
        self._at_work: _Job[object] | None = None
        self._ticket = 0
        """Of the latest turn that was asked for; earlier ones that have not come yet are void."""
        self._due = False

    def submit(self, work: Callable[[], T], *, urgent: bool = False) -> "Future[T]":
        """Do ``work`` when everything submitted before has been done.

        Raises:
            UnavailableError: the pools take no job; ``work`` will not be done.
        """
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
        """End all futures that are not done with ``error``: no one waits for what does not come to an end."""
        with self._lock:
            jobs = [*([self._at_work] if self._at_work is not None else []), *self._jobs]
            self._jobs.clear()
            self._due = False
            self._ticket += 1
        for job in jobs:
            job.fail(error)
