"""The dynamic batcher: requests that wait at the same time are executed together, by threads of their own."""

import threading
from collections.abc import Sequence

from repoagent.serving.instances.backend import Capability
from repoagent.serving.instances.instance import Instance, close_all, join_all
from repoagent.serving.instances.instance_pool import InstancePool
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import submit_and_wait
from repoagent.serving.scheduling.assistant import Assistant
from repoagent.serving.scheduling.batch_queue import BatchQueue, BatchRule, BatchSettings
from repoagent.serving.scheduling.scheduler import PooledScheduler
from repoagent.serving.scheduling.steps import (
    NOTHING,
    BatchSource,
    Clock,
    Refusal,
    Refuser,
    Step,
    Watcher,
    start_workers,
)


class BatchWorkers:
    """Up to ``count`` threads that take batches out of ``source`` and execute them on the instances of ``pool``.

    ``lock`` guards ``source``, and whatever else its owner guards with it. ``refuser`` answers requests that are not
    executed; it is called without the lock. A thread changes hands once per batch, not once per request. With an
    ``assistant`` it need not be the same one that joins, runs and answers a batch.
    """

    def __init__(
        self,
        name: str,
        count: int,
        pool: InstancePool[Instance],
        source: BatchSource,
        lock: threading.Lock,
        clock: Clock,
        refuser: Refuser,
        assistant: Assistant | None = None,
    ) -> None:
        self._name = name
        self._count = count
        self._pool = pool
        self._source = source
        self._changed = threading.Condition(lock)
        self._clock = clock
        self._refuser = refuser
        self._assistant = assistant
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._delaying = 0
        self._kicks = 0
        self._stopped = False

    def kick(self) -> None:
        """Something was put into the source. Call it with the lock held."""
        self._kicks += 1
        if not self._threads and not self._stopped:
            # Only when first needed: an embedder that waits for quick answers never has a thread per model.
            start_workers(self._threads, self._count, self._work, self._name)
        elif self._idle and (self._source.ripe or not self._delaying):
            self._changed.notify()
        if self._assistant is not None:
            self._assistant.kick()

    def resize(self, count: int) -> None:
        """There are ``count`` instances now. Threads more than that wait for one. Call it with the lock held."""
        self._count = count
        if self._threads and not self._stopped:
            start_workers(self._threads, count, self._work, self._name)

    def _work(self) -> None:
        while self._wait_for_requests():
            instance = self._pool.take()
            if instance is None:
                return  # It is closed, which answers what waits.
            try:
                step, kicks = self._next()
                self._perform(instance, step)
                while step.batch and self._pool.for_one and len(self._source):
                    step = NOTHING  # Here, too, it waits.
                    if not self._pool.retake(instance):
                        break
                    step, kicks = self._next()
                    self._perform(instance, step)
            finally:
                self._pool.give(instance)
            wake_ns = step.wake_ns
            del step  # While this thread waits, it keeps no request's tensors in memory.
            if wake_ns is not None:
                self._delay(wake_ns, kicks)

    def _wait_for_requests(self) -> bool:
        """True when something waits, False when it is time to stop."""
        with self._changed:
            while not len(self._source) and not self._stopped:
                self._sleep(None)
            return not self._stopped

    def _next(self) -> tuple[Step, int]:
        """The next batch, if one is ready, and how often :meth:`kick` had been called by then."""
        with self._changed:
            if not len(self._source) or self._stopped:
                return NOTHING, self._kicks
            step = self._source.next(self._clock.now_ns())
            if step.batch or step.refusals:
                if len(self._source):
                    self.kick()  # There may be work for another thread as well.
                return Step(step.batch, step.refusals), self._kicks
            return step, self._kicks

    def _delay(self, until_ns: int, kicks: int) -> None:
        """Wait for more to come. Without an instance: its resources may be of use to others meanwhile."""
        with self._changed:
            if kicks != self._kicks or self._stopped:
                return
            self._delaying += 1
            self._sleep(until_ns)
            self._delaying -= 1

    def _sleep(self, until_ns: int | None) -> None:
        self._idle += 1
        self._clock.wait(self._changed, until_ns)
        self._idle -= 1

    def _perform(self, instance: Instance, step: Step) -> None:
        for refusal in step.refusals:
            self._refuser.answer(refusal)
        if not step.batch:
            return
        if self._assistant is None:
            instance.execute(step.batch)
        else:
            self._assistant.execute(instance, step.batch)

    def _dismiss(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._assistant is not None:
            self._assistant.stop()


def stop_all(lanes: Sequence[BatchWorkers]) -> None:
    """Let running batches end and the threads with them, of all at once; take nothing more out of the sources."""
    for workers in lanes:
        workers._dismiss()
    join_all(thread for workers in lanes for thread in workers._threads)


class DynamicBatchScheduler(PooledScheduler):
    """Batches of requests, made by a :class:`BatchQueue` and executed by :class:`BatchWorkers`.

    Where requests are not to wait for others, one that finds an instance idle and nothing waiting needs no batch: it is
    executed where it is, if its caller waits anyway, or if the model is so quick that putting requests together would
    take longer.
    """

    brief_ns = 30_000

    def __init__(
        self,
        model_name: str,
        instances: Sequence[Instance],
        statistics: ModelStatistics,
        *,
        settings: BatchSettings,
        rule: BatchRule,
        clock: Clock,
    ) -> None:
        super().__init__(model_name, instances, statistics, clock)
        self._plain = settings.plain
        self.delayed = settings.delay_ns > 0
        self._timed = any(policy.timeout_ns for policy in (settings.policy, *settings.level_policies.values()))
        self._queue = BatchQueue(settings, rule)
        thread_name = f"repoagent-{model_name}"
        self._assistant = None
        if settings.max_batch_size > 1 and all(Capability.STAGED in instance.capabilities for instance in instances):
            self._assistant = Assistant(f"{thread_name}-assistant", self, self._queue, self._lock)
        self._workers = BatchWorkers(
            thread_name,
            len(instances),
            self._pool,
            self._queue,
            self._lock,
            clock,
            self.refuser,
            self._assistant,
        )
        self._watcher = Watcher(f"{thread_name}-timeouts", self._lock, clock, self._queue, self.refuser)

    @property
    def waiting(self) -> int:
        return len(self._queue) + (self._assistant.holding if self._assistant is not None else 0)

    def infer(self, request: InferRequest) -> InferResponse:
        if self._plain and not self._queue and self.executes_here(False):
            # To wait for an instance takes less time than to be woken up by another thread's batch. The pool knows
            # neither priorities nor queue policies, so this is only for models without them.
            return self._call(self._take(request), request)
        instance = self._idle_instance()
        if instance is None:
            return submit_and_wait(self._enqueue, request, self._model_name)
        return self._call(instance, request)

    def submit(self, request: InferRequest) -> None:
        instance = self._idle_instance() if self._executes_submitted(request) else None
        if instance is None:
            self._enqueue(request)
        else:
            self._execute_on(instance, request)

    def _idle_instance(self) -> Instance | None:
        """An instance, if requests need not wait for others and nothing waits; None otherwise."""
        return None if self.delayed or self._queue else self._pool.take_idle()

    def _enqueue(self, request: InferRequest) -> None:
        request.on_cancel = self._watcher.on_cancel
        with self._lock:
            if self._closed or request.cancelled:
                refusal = self._refusal(request)
            elif self._queue.put(request, self.clock.now_ns()):
                self._workers.kick()
                if self._timed or request.asked.timeout_us:
                    self._watcher.notice()
                return
            else:
                refusal = Refusal.full(request)
        self.refuser.answer(refusal)

    def _follow_instances(self) -> None:
        self._workers.resize(len(self.instances))
        if self._assistant is not None:
            self._assistant.look_again()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._watcher.stop()
        self._pool.close()
        stop_all((self._workers,))
        with self._lock:
            left_over = self._queue.drain()
        for request in left_over:
            self.turn_away(request)
        close_all(self.instances)
