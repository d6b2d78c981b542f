"""A thread that does for the workers what need not be done between two executions."""

import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from repoagent.serving.instances.backend import Capability
from repoagent.serving.instances.batches import Batch
from repoagent.serving.instances.instance import Instance
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.scheduling.batch_queue import BatchQueue
from repoagent.serving.scheduling.steps import Step

if TYPE_CHECKING:
    from repoagent.serving.scheduling.batching import DynamicBatchScheduler

_PATIENCE_SECONDS: Final = 1.0
_MOMENT_SECONDS: Final = 0.001
"""What a batch that the device computes may have to wait for its answer, so that the next one begins before it ends."""
_BRIEF_NS: Final = 1_000_000
"""A batch that takes less is over before another thread has done anything useful."""


class Assistant:
    """While an instance runs a batch, makes the next one, if it would be full, and answers the one before.

    Python does all that on one core, and a model that computes on all of them would wait for it. A batch that would
    not be full is left in the source: more may come until an instance is free.

    It works for ``scheduler``, whose ``lock`` guards ``source``. The first of the instances makes the batches for all,
    which are staged like it.
    """

    def __init__(self, name: str, scheduler: "DynamicBatchScheduler", source: BatchQueue, lock: threading.Lock) -> None:
        self._name = name
        self._scheduler = scheduler
        self._source = source
        self._lock = lock
        self._changed = threading.Condition(lock)
        self._made = threading.Condition(lock)
        self._thread: threading.Thread | None = None
        self._asleep = False
        self._stopped = False
        self._running = 0
        """How many workers are here."""
        self._making = False
        self._tried = False
        """The source has been asked since something happened that could make a batch of what is in it."""
        self._ready: deque[Batch] = deque()
        self._unanswered: deque[tuple[Instance, Batch]] = deque()

    @property
    def holding(self) -> int:
        """How many requests are in batches that wait for an instance."""
        return sum(len(batch.requests) for batch in tuple(self._ready))

    def look_again(self) -> None:
        """The scheduler has other instances now. Call it with the lock held."""
        self._tried = False

    # -- for the workers -------------------------------------------------------------------------------------------

    def kick(self) -> None:
        """Something was put into the source. Call it with the lock held."""
        self._tried = False
        if self._running and (self._asleep or self._thread is None) and self._source.full:
            self._wake()

    def execute(self, instance: Instance, requests: Sequence[InferRequest]) -> None:
        """Execute ``requests`` on ``instance``, and what is ready whenever it has run a batch."""
        if instance.run_time.usual_ns < _BRIEF_NS:
            instance.execute(requests)
            return
        batch = instance.prepare(requests)
        with self._lock:
            self._running += 1
            self._tried = False
            if self._source.full:
                self._wake()
        if Capability.OVERLAPS in instance.capabilities:
            self._run_overlapping(instance, batch)
        else:
            self._run_in_turn(instance, batch)

    def _run_in_turn(self, staged: Instance, batch: Batch) -> None:
        while True:
            staged.run(batch)
            following = self._go_on(staged, batch)
            if following is None:
                break
            batch = self._without_cancelled(staged, following)
        staged.answer(batch)

    def _run_overlapping(self, staged: Instance, batch: Batch) -> None:
        """The same; what is ready begins before the one before it has ended."""
        staged.begin(batch)
        while True:
            following = self._begin_ready(staged)
            staged.end(batch)
            if following is not None:
                self._let_answer(staged, batch)
            else:
                following = self._go_on(staged, batch)
                if following is None:
                    break
                following = self._without_cancelled(staged, following)
                staged.begin(following)
            batch = following
        staged.answer(batch)

    def _begin_ready(self, staged: Instance) -> Batch | None:
        """The next batch, which has begun; None if there is none that would be ready in a moment."""
        with self._lock:
            until = time.monotonic() + _MOMENT_SECONDS
            while not self._ready and not self._stopped and (self._making or self._should_make):
                if not self._made.wait(until - time.monotonic()):
                    return None
            if self._stopped or not self._ready:
                return None
            batch = self._ready.popleft()
            self._tried = False
            self._wake()
        batch = self._without_cancelled(staged, batch)
        staged.begin(batch)
        return batch

    def _let_answer(self, instance: Instance, done: Batch) -> None:
        with self._lock:
            if not self._stopped:
                self._unanswered.append((instance, done))
                self._tried = False
                self._wake()
                return
        instance.answer(done)

    def _go_on(self, instance: Instance, done: Batch) -> Batch | None:
        """The next batch, ``done`` being answered meanwhile; None if there is none, and the worker answers."""
        with self._lock:
            while self._making and not self._ready and not self._stopped:
                self._made.wait()
            if self._stopped or not self._ready:
                self._running -= 1
                return None
            following = self._ready.popleft()
            self._unanswered.append((instance, done))
            self._tried = False
            self._wake()
        return following

    def _without_cancelled(self, instance: Instance, batch: Batch) -> Batch:
        cancelled = [request for request in batch.requests if request.cancelled]
        if not cancelled:
            return batch
        for request in cancelled:
            self._scheduler.turn_away(request)
        return instance.prepare([request for request in batch.requests if request not in cancelled])

    # -- the thread ------------------------------------------------------------------------------------------------

    def _wake(self) -> None:
        if self._asleep:
            self._changed.notify()
        elif self._thread is None and not self._stopped:
            self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
            self._thread.start()

    def _work(self) -> None:
        while (task := self._next()) is not None:
            if isinstance(task, Step):
                self._make(task)
            else:
                instance, batch = task
                instance.answer(batch)
                del instance, batch
            del task  # While this thread waits, it keeps no request's tensors in memory.

    def _next(self) -> tuple[Instance, Batch] | Step | None:
        """A batch to answer, else what a batch is to be made of, waiting for it; None to end."""
        with self._changed:
            while not self._unanswered and not self._stopped:
                if self._should_make:
                    self._making = self._tried = True
                    return self._source.next(self._scheduler.clock.now_ns())
                self._asleep = True
                self._changed.wait()
                self._asleep = False
            return self._unanswered.popleft() if self._unanswered else None

    @property
    def _should_make(self) -> bool:
        # A worker that is not here takes it itself: no request waits for a busy instance beside an idle one.
        if self._tried or self._running < len(self._scheduler.instances):
            return False
        return len(self._ready) < self._running and self._source.full

    def _make(self, step: Step) -> None:
        for refusal in step.refusals:
            self._scheduler.refuser.answer(refusal)
        batch = self._scheduler.instances[0].prepare(step.batch) if step.batch else None
        with self._lock:
            self._making = False
            self._made.notify_all()
            if batch is not None or step.refusals:
                self._tried = False
            if batch is not None and not self._stopped:
                self._ready.append(batch)
                return
        self._give_up([] if batch is None else [batch])

    def stop(self) -> None:
        """Answer what is to be answered, turn away what is ready, and let the workers do the rest by themselves."""
        with self._lock:
            self._stopped = True
            self._changed.notify()
            self._made.notify_all()
        if self._thread is not None:
            # Bounded, as elsewhere: a sender that hangs must not hang the unload.
            self._thread.join(_PATIENCE_SECONDS)
        with self._lock:
            ready = list(self._ready)
            self._ready.clear()
        self._give_up(ready)

    def _give_up(self, batches: Sequence[Batch]) -> None:
        for batch in batches:
            for request in batch.requests:
                self._scheduler.turn_away(request)
