"""The dynamic batcher: requests that wait at the same time are executed together."""

from collections.abc import Sequence

from repoagent.serving.instances.backend import Capability
from repoagent.serving.instances.instance import Instance, close_all
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import submit_and_wait
from repoagent.serving.scheduling.assistant import Assistant
from repoagent.serving.scheduling.batch_queue import BatchQueue
from repoagent.serving.scheduling.batch_settings import BatchRule, BatchSettings
from repoagent.serving.scheduling.scheduler import PooledScheduler
from repoagent.serving.scheduling.steps import Clock, Refusal
from repoagent.serving.scheduling.watcher import Watcher
from repoagent.serving.scheduling.workers import BatchWorkers


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
        self._assistant = self._new_assistant(f"{thread_name}-assistant") if settings.max_batch_size > 1 else None
        self._workers = BatchWorkers(
            thread_name,
            len(instances),
            self._pool,
            self._queue,
            self._lock,
            clock,
            self._refuser,
            self._assistant,
        )
        self._watcher = Watcher(
            f"{thread_name}-timeouts",
            self._lock,
            clock,
            self._queue,
            self._refuser,
        )

    def _new_assistant(self, name: str) -> Assistant | None:
        """An assistant for the workers, if the instances can be assisted."""
        if not all(Capability.STAGED in instance.capabilities for instance in self._instances):
            return None
        first, count = self._instances[0], len(self._instances)
        return Assistant(name, first, count, self._queue, self._lock, self._clock, self._refuser, self._turn_away)

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
            elif self._queue.put(request, self._clock.now_ns()):
                self._workers.kick()
                if self._timed or request.asked.timeout_us:
                    self._watcher.notice()
                return
            else:
                refusal = Refusal.full(request)
        self._refuser.answer(refusal)

    def _follow_instances(self) -> None:
        count = len(self._instances)
        self._workers.resize(count)
        if self._assistant is not None:
            self._assistant.resize(self._instances[0], count)

    def _turn_away(self, request: InferRequest) -> None:
        self._refuser.answer(self._refusal(request))

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._watcher.stop()
        self._pool.close()
        self._workers.stop()
        with self._lock:
            left_over = self._queue.drain()
        for request in left_over:
            self._turn_away(request)
        close_all(self._instances)
