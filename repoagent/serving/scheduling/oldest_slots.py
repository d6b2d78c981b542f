"""Oldest sequence batching: batches are made of the oldest requests of all sequences, at most one of each."""

from collections.abc import Callable
from functools import partial

from repoagent.serving.requests.request import InferRequest
from repoagent.serving.scheduling.batch_queue import BatchQueue
from repoagent.serving.scheduling.ordering import OrderKeeper
from repoagent.serving.scheduling.sequence_controls import SequenceControls
from repoagent.serving.scheduling.sequence_table import SequenceTable, Slot
from repoagent.serving.scheduling.slot_requests import put_into_slot
from repoagent.serving.scheduling.steps import Refusal, Step

__all__ = ["OldestSlots"]


class OldestSlots:
    """The candidate sequences of one instance; a :class:`~.steps.BatchSource`. Not thread-safe.

    The next request of a sequence goes into ``batcher`` when the one before has been answered. ``over`` is called
    then, without any lock, and must call :meth:`finished` with the lock held. With a ``keeper``, answers leave in the
    order in which requests went into the batcher.
    """

    def __init__(
        self,
        slots: list[Slot],
        table: SequenceTable,
        controls: SequenceControls,
        batcher: BatchQueue,
        over: Callable[[Slot], None],
        keeper: OrderKeeper | None,
    ) -> None:
        self._slots = slots
        self._table = table
        self._controls = controls
        self._batcher = batcher
        self._over = over
        self._keeper = keeper
        self._refusals: list[Refusal] = []

    def __len__(self) -> int:
        return len(self._batcher) + len(self._refusals)

    @property
    def ripe(self) -> bool:
        return self._batcher.ripe or bool(self._refusals)

    def advance(self, slot: Slot, now_ns: int) -> None:
        """Something came into the queue of ``slot``: let it go on into the batcher unless another one is in there."""
        while slot.queue and not slot.in_flight:
            entry = slot.queue[0]
            if entry is None or entry.request.cancelled:
                self._release(slot, now_ns)
                continue
            slot.queue.popleft()
            slot.in_flight = True
            request = put_into_slot(entry.request, slot, self._controls, partial(self._over, slot))
            if self._keeper is not None:
                self._keeper.enroll(request)
            slot.ending = request.asked.sequence_end
            self._batcher.put(request, now_ns)

    def _release(self, slot: Slot, now_ns: int) -> None:
        self._refusals += [Refusal.cancelled(entry.request) for entry in self._table.release(slot, now_ns)]

    def finished(self, slot: Slot, now_ns: int) -> None:
        """The request of ``slot`` that was in flight has been answered."""
        slot.in_flight = False
        if slot.ending:
            slot.ending = False
            self._release(slot, now_ns)
        self.advance(slot, now_ns)

    def next(self, now_ns: int) -> Step:
        refusals, self._refusals = self._refusals, []
        step = self._batcher.next(now_ns)
        return Step(step.batch, [*refusals, *step.refusals], step.wake_ns)

    def sweep(self) -> list[Refusal]:
        """Take the cancelled requests out of the batcher; their sequences go on."""
        refusals, self._refusals = self._refusals, []
        return [*refusals, *self._batcher.sweep()]

    @property
    def waiting(self) -> int:
        """How many requests have a slot and are not in a batch yet."""
        return len(self) + sum(len(slot.queue) for slot in self._slots)

    def drain(self) -> list[InferRequest]:
        refused = [refusal.request for refusal in self._refusals]
        self._refusals = []
        held = [entry.request for slot in self._slots for entry in slot.queue if entry is not None]
        for slot in self._slots:
            slot.queue.clear()
        return [*refused, *self._batcher.drain(), *held]
