"""Threads that execute batches."""

import threading
from collections.abc import Callable
from typing import Final

from repoagent.serving.instances import Instance
from repoagent.serving.pool import InstancePool
from repoagent.serving.scheduling.assistant import Assistant
from repoagent.serving.scheduling.clock import Clock
from repoagent.serving.scheduling.steps import BatchSource, Refusal, Step

__all__ = ["BatchWorkers"]

_PATIENCE_SECONDS: Final = 1.0


class BatchWorkers:
    """Up to ``count`` threads that take batches out of ``source`` and execute them on the instances of ``pool``.

    ``lock`` guards ``source``, and whatever else its owner guards with it. ``refuse`` answers a request that is not
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
        refuse: Callable[[Refusal], None],
        assistant: Assistant | None = None,
    ) -> None:
        self._name = name
        self._count = count
        self._pool = pool
        self._source = source
        self._changed = threading.Condition(lock)
        self._clock = clock
        self._refuse = refuse
        self._assistant = assistant
        self._threads: list[threading.Thread] = []
        self._idle = 0
        self._delaying = 0
        self._stopped = False

    def kick(self) -> None:
        """Something was put into the source. Call it with the lock held."""
        if not self._threads and not self._stopped:
            self._start()
        elif self._idle and (self._source.ripe or not self._delaying):
            self._changed.notify()
        if self._assistant is not None:
            self._assistant.kick()

    def _start(self) -> None:
        # Only when first needed: an embedder that waits for quick answers never has a thread per model.
        for index in range(self._count):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{index}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _work(self) -> None:
        while self._wait_for_requests():
            instance = self._pool.take()
            if instance is None:  # Cannot be: without a timeout it waits until there is one.
                raise AssertionError("a pool without a timeout gave nothing")
            try:
                self._perform(instance, self._next())
            finally:
                self._pool.give(instance)

    def _wait_for_requests(self) -> bool:
        """True when something waits, False when it is time to stop."""
        with self._changed:
            while not len(self._source) and not self._stopped:
                self._sleep(None)
            return not self._stopped

    def _next(self) -> Step:
        """The next batch, waiting for it to be ready; an empty step if nothing waits any more."""
        with self._changed:
            while len(self._source) and not self._stopped:
                step = self._source.next(self._clock.now_ns())
                if step.batch or step.refusals:
                    if len(self._source):
                        self.kick()  # There may be work for another thread as well.
                    return step
                self._delaying += 1
                self._sleep(step.wake_ns)
                self._delaying -= 1
        return Step()

    def _sleep(self, until_ns: int | None) -> None:
        self._idle += 1
        self._clock.wait(self._changed, until_ns)
        self._idle -= 1

    def _perform(self, instance: Instance, step: Step) -> None:
        for refusal in step.refusals:
            self._refuse(refusal)
        if not step.batch:
            return
        if self._assistant is None:
            instance.execute(step.batch)
        else:
            self._assistant.execute(instance, step.batch)

    def stop(self) -> None:
        """Let running batches end and the threads with them; take nothing more out of the source."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._assistant is not None:
            self._assistant.stop()
        for thread in self._threads:
            # Bounded: a request that never ends must not hang the unload; its worker ends with it.
            thread.join(_PATIENCE_SECONDS)
