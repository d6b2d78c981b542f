"""Threads that execute batches."""

import logging
import threading
from collections.abc import Sequence
from typing import Final

from repoagent.serving.instances.instance import Instance, join_all
from repoagent.serving.instances.instance_pool import InstancePool
from repoagent.serving.scheduling.assistant import Assistant
from repoagent.serving.scheduling.steps import NOTHING, BatchSource, Clock, Refuser, Step

logger = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 1.0


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
            self._start()
        elif self._idle and (self._source.ripe or not self._delaying):
            self._changed.notify()
        if self._assistant is not None:
            self._assistant.kick()

    def _start(self) -> None:
        # Only when first needed: an embedder that waits for quick answers never has a thread per model.
        for index in range(len(self._threads), self._count):
            thread = threading.Thread(target=self._work, name=f"{self._name}-{index}", daemon=True)
            try:
                thread.start()
            except RuntimeError as error:
                logger.warning("%s gets no thread more (%s)", self._name, error)
                return
            self._threads.append(thread)

    def resize(self, count: int) -> None:
        """There are ``count`` instances now. Threads more than that wait for one. Call it with the lock held."""
        self._count = count
        if self._threads and not self._stopped:
            self._start()

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

    def stop(self) -> None:
        """Let running batches end and the threads with them; take nothing more out of the source."""
        stop_all((self,))

    def _dismiss(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        if self._assistant is not None:
            self._assistant.stop()


def stop_all(lanes: Sequence[BatchWorkers]) -> None:
    """:meth:`BatchWorkers.stop` of all, at once."""
    for workers in lanes:
        workers._dismiss()
    # Bounded: a request that never ends must not hang the unload; its worker ends with it.
    join_all([thread for workers in lanes for thread in workers._threads], _PATIENCE_SECONDS)
