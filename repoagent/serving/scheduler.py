"""Schedulers decide when, where and with whom a request is executed. This module has the protocol and the plain one.

A hop from one thread to another costs about ten times a small ``session.run``. So a caller that waits anyway executes
its request on its own thread (:meth:`Scheduler.infer`), what lately took no longer than a hop is executed where it was
submitted, and a worker that is woken up takes all that waits, not one.
"""

import threading
import time
from collections.abc import Sequence
from queue import Empty, SimpleQueue
from typing import Protocol

from repoagent.errors import CancelledError, RepoAgentError, UnavailableError
from repoagent.serving.instances import Instance
from repoagent.serving.pace import common_pace
from repoagent.serving.pool import InstancePool
from repoagent.serving.request import InferRequest, InferResponse
from repoagent.serving.senders import answer_error
from repoagent.serving.statistics import FailureReason, ModelStatistics

__all__ = ["DirectScheduler", "Scheduler"]


class Scheduler(Protocol):
    """Executes the requests of one version of a model on its instances. All methods may be called at once."""

    def infer(self, request: InferRequest) -> InferResponse:
        """Execute ``request`` and return its answer.

        Raises:
            RepoAgentError: it failed, was cancelled, or waited too long.
        """

    def submit(self, request: InferRequest) -> None:
        """Take ``request`` over; it is answered through its sender, perhaps before this returns. Never raises.

        It returns soon: a scheduler executes here only what takes about as long as a thread's waking up.
        """

    @property
    def waiting(self) -> int:
        """How many submitted requests have not been taken up yet."""

    def executes_here(self, patient: bool) -> bool:
        """Whether a caller is better served by :meth:`infer` than by :meth:`submit`.

        So it is if :meth:`infer` executes on the thread that calls it, by itself, and usually is over so soon that
        handing the request to another thread would be a good part of it. One that is ``patient``, who would only wait
        in any case, is if an instance is free and it usually does not take long.
        """

    def retire(self) -> None:
        """No further request will come; those that have come are executed all the same."""

    def close(self) -> None:
        """Answer what still waits with UnavailableError, stop the threads, close the instances."""


class DirectScheduler:
    """First come, first served; every request is executed by itself."""

    def __init__(self, model_name: str, instances: Sequence[Instance], statistics: ModelStatistics) -> None:
        self._model_name = model_name
        self._instances = tuple(instances)
        self._statistics = statistics
        self._pace = common_pace(instance.pace for instance in instances)
        self._pool = InstancePool(instances)
        self._waiting: SimpleQueue[InferRequest | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._workers: list[threading.Thread] = []
        self._closed = False

    @property
    def waiting(self) -> int:
        return self._waiting.qsize()

    def executes_here(self, patient: bool) -> bool:
        pace = self._pace
        return pace.brief or (patient and pace.short and self._pool.has_idle and self._waiting.empty())

    def infer(self, request: InferRequest) -> InferResponse:
        instance = self._pool.take(request.timeout_us / 1e6 if request.timeout_us else None)
        if instance is None:
            raise self._refuse(request)
        try:
            if request.cancelled or self._closed:
                raise self._refuse(request)
            return instance.call(request)
        finally:
            self._pool.give(instance)

    def submit(self, request: InferRequest) -> None:
        if not self._waiting.empty() or not self._execute_now(request):
            self._waiting.put(request)
            if not self._workers:
                self._start_workers()
            if self._closed:  # It was closed meanwhile, and nobody will look again.
                self._answer_left_over()

    def _execute_now(self, request: InferRequest) -> bool:
        """Execute ``request`` on this thread if that is sooner over than waking a worker; False if it was not done."""
        instance = self._pool.take_idle() if self._pace.quick else None
        if instance is None:
            return False
        try:
            self._execute(instance, request)
            return True
        finally:
            self._pool.give(instance)

    def _start_workers(self) -> None:
        # Only when first needed: an embedder that waits for its answers never has a thread per model.
        with self._lock:
            if self._workers or self._closed:
                return
            self._workers = [
                threading.Thread(target=self._work, name=f"repoagent-{self._model_name}-{index}", daemon=True)
                for index in range(len(self._instances))
            ]
            for worker in self._workers:
                worker.start()

    def _work(self) -> None:
        while (request := self._waiting.get()) is not None:
            instance = self._pool.take()
            if instance is None:  # Cannot be: without a timeout it waits until there is one.
                raise AssertionError("a pool without a timeout gave nothing")
            try:
                self._drain(instance, request)
            finally:
                self._pool.give(instance)

    def _drain(self, instance: Instance, request: InferRequest) -> None:
        """Execute ``request`` and this instance's share of what waits behind it."""
        share = self._waiting.qsize() // len(self._instances)
        self._execute(instance, request)
        for _ in range(share):
            try:
                following = self._waiting.get_nowait()
            except Empty:
                return
            if following is None:  # The mark to stop is for a worker, not for an instance.
                self._waiting.put(None)
                return
            self._execute(instance, following)

    def _execute(self, instance: Instance, request: InferRequest) -> None:
        if request.cancelled or self._closed or self._expired(request):
            answer_error(request, self._refuse(request))
        else:
            instance.execute((request,))

    @staticmethod
    def _expired(request: InferRequest) -> bool:
        return bool(request.timeout_us) and time.monotonic_ns() - request.arrival_ns > request.timeout_us * 1000

    def _refuse(self, request: InferRequest) -> RepoAgentError:
        """The error for a request that is not executed, which is counted."""
        error: RepoAgentError
        if request.cancelled:
            reason, error = FailureReason.CANCELED, CancelledError("request cancelled")
        elif self._closed:
            reason, error = FailureReason.OTHER, UnavailableError(f"model '{self._model_name}' is unloaded")
        else:
            reason, error = FailureReason.REJECTED, UnavailableError("Request timeout expired")
        self._statistics.record_failure(request.arrival_ns, time.monotonic_ns(), reason)
        return error

    def retire(self) -> None:
        """Nothing waits for others here."""

    def close(self) -> None:
        with self._lock:
            self._closed = True
        for _ in self._workers:
            self._waiting.put(None)
        for worker in self._workers:
            # Bounded: a request that never ends must not hang the unload; its worker ends with it.
            worker.join(timeout=1.0)
        self._answer_left_over()
        for instance in self._instances:
            instance.close()

    def _answer_left_over(self) -> None:
        marks = 0
        try:
            while True:
                request = self._waiting.get_nowait()
                if request is None:
                    marks += 1
                else:
                    answer_error(request, self._refuse(request))
        except Empty:
            for _ in range(marks):  # They are for workers that have not seen them yet.
                self._waiting.put(None)
