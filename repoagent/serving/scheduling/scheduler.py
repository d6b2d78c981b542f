"""Schedulers decide when, where and with whom a request is executed. Here is what all of them share.

A hop from one thread to another costs about ten times a small ``session.run``. So a caller that waits anyway executes
its request on its own thread (:meth:`Scheduler.infer`), what lately took no longer than a hop is executed where it was
submitted, and a worker that is woken up takes all that waits, not one.
"""

import threading
from collections.abc import Sequence
from typing import Final

from repoagent.serving.instances.instance import Instance
from repoagent.serving.measuring.latencies import common_run_time
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import submit_and_wait
from repoagent.serving.requests.tensor import input_bytes
from repoagent.serving.scheduling.rate_limiter import new_pool
from repoagent.serving.scheduling.steps import Clock, Refusal, Refuser

_SHORT_NS: Final = 10_000_000
"""Beside a run that takes longer than that, another thread costs nothing, and a caller may do other work or give up."""


class Scheduler:
    """Executes the requests of one version of a model on its instances. All methods may be called at once."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name

    def infer(self, request: InferRequest) -> InferResponse:
        """Execute ``request`` and return its answer; raises if it failed, was cancelled, or waited too long."""
        return submit_and_wait(self.submit, request, self._model_name)

    def submit(self, request: InferRequest) -> None:
        """Take ``request`` over; it is answered through its sender, perhaps before this returns. Never raises.

        It returns soon: a scheduler executes here only what takes about as long as a thread's waking up.
        """
        raise NotImplementedError

    @property
    def waiting(self) -> int:
        """How many submitted requests have not been taken up yet."""
        return 0

    def executes_here(self, patient: bool) -> bool:
        """Whether a caller is better served by :meth:`infer` than by :meth:`submit`.

        So it is if :meth:`infer` executes on the thread that calls it, by itself, and usually is over so soon that
        handing the request to another thread would be a good part of it. One that is ``patient``, who would only wait
        in any case, is if an instance is free and it usually does not take long.
        """
        return False

    @property
    def resizable(self) -> bool:
        """Whether its instances can be changed while it serves."""
        return False

    def resize(self, added: Sequence[Instance], removed: Sequence[Instance]) -> None:
        """Use ``added`` too, and close each of ``removed`` as soon as it executes nothing. Only if it is resizable."""

    def retire(self) -> None:
        """No further request will come; those that have come are still executed."""

    def close(self) -> None:
        """Answer what still waits with UnavailableError, stop the threads, close the instances."""
        raise NotImplementedError


class PooledScheduler(Scheduler):
    """A scheduler whose callers may execute requests on their own threads. Whether they do is decided here alone."""

    brief_ns = 1_000_000
    """What usually takes less than that is better executed where it is than handed to another thread."""
    delayed = False
    """Whether requests are to wait for others; then none is executed where it is."""

    def __init__(
        self, model_name: str, instances: Sequence[Instance], statistics: ModelStatistics, clock: Clock
    ) -> None:
        super().__init__(model_name)
        self.instances = tuple(instances)
        self._pool = new_pool(instances)
        self._run_time = common_run_time(instance.run_time for instance in instances)
        self.clock = clock
        self.refuser = Refuser(statistics, clock)
        self._lock = threading.Lock()
        self._closed = False

    def executes_here(self, patient: bool) -> bool:
        usual_ns = self._run_time.usual_ns
        if self.delayed or usual_ns >= _SHORT_NS:
            return False
        return usual_ns < self.brief_ns or (patient and self._pool.has_idle and not self.waiting)

    def _executes_submitted(self, request: InferRequest) -> bool:
        """The same for the thread that submits, which may be an event loop: it must be sure to have it back soon.

        So it is if lately every run was over sooner than another thread is awake, also for as many bytes of inputs.
        """
        run_time = self._run_time
        if not run_time.quick or run_time.usual_ns >= self.brief_ns or self.delayed:
            return False
        return input_bytes(request.inputs) <= run_time.quick_bytes

    @property
    def resizable(self) -> bool:
        return not self._pool.for_one

    def resize(self, added: Sequence[Instance], removed: Sequence[Instance]) -> None:
        with self._lock:
            self.instances = (*(known for known in self.instances if known not in removed), *added)
            if not self._closed:
                self._follow_instances()
        self._pool.change(added, removed, lambda instance: instance.close())

    def _follow_instances(self) -> None:
        """Have as many workers as there are instances now. Holds the lock."""
        raise NotImplementedError

    def _take(self, request: InferRequest) -> Instance:
        """Wait for an instance; :meth:`_call` or :meth:`_execute_on` gives it back. Raises ``CancelledError``, or
        ``UnavailableError`` if the timeout expired or the model is being unloaded."""
        timeout_us = request.asked.timeout_us
        instance = self._pool.take(timeout_us / 1e6 if timeout_us else None, request)
        if instance is None:
            raise self.refuser.count(self._refusal(request))
        return instance

    def _call(self, instance: Instance, request: InferRequest) -> InferResponse:
        """Execute ``request`` and return its answer."""
        try:
            if request.cancelled or self._closed:
                raise self.refuser.count(self._refusal(request))
            return instance.call(request)
        finally:
            self._pool.give(instance)

    def _execute_on(self, instance: Instance, request: InferRequest) -> None:
        """Execute ``request``; the answer goes to its sender."""
        try:
            if request.cancelled or self._closed:
                self.turn_away(request)
            else:
                instance.execute((request,))
        finally:
            self._pool.give(instance)

    def turn_away(self, request: InferRequest) -> None:
        """Answer ``request``, which is not executed. Call it without the lock."""
        self.refuser.answer(self._refusal(request))

    def _refusal(self, request: InferRequest) -> Refusal:
        """Why ``request`` is not executed."""
        if request.cancelled:
            return Refusal.cancelled(request)
        return Refusal.unloaded(request, self._model_name) if self._closed else Refusal.expired(request)
