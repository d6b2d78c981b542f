"""Oldest sequence batching: batches are made of the oldest requests of all sequences, at most one of each."""

from collections.abc import Callable, Hashable
from functools import partial

from repoagent.config.model_config_pb2 import ModelSequenceBatching
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.scheduling.batch_queue import BatchQueue
from repoagent.serving.scheduling.sequence_controls import SequenceControls, put_into_slot
from repoagent.serving.scheduling.sequence_table import SequenceTable, Slot
from repoagent.serving.scheduling.steps import Entry, Refusal, Step
from repoagent.serving.scheduling.wrappers import OrderKeeper

StrategyDirect = ModelSequenceBatching.StrategyDirect


class DirectSlots:
    """The slots of one instance; a :class:`~.steps.BatchSource`. Not thread-safe.

    ``direct`` states when a batch goes that does not fill all of them.
    """

    def __init__(
        self, slots: list[Slot], table: SequenceTable, controls: SequenceControls, direct: StrategyDirect
    ) -> None:
        self._slots = slots
        self._table = table
        self._controls = controls
        self._delay_ns = direct.max_queue_delay_microseconds * 1000
        self._utilization = direct.minimum_slot_utilization

    def __len__(self) -> int:
        return sum(len(slot.queue) for slot in self._slots)

    @property
    def ripe(self) -> bool:
        return True

    def advance(self, slot: Slot, now_ns: int) -> None:
        """Something came into the queue of ``slot``: :meth:`next` will find it."""

    def next(self, now_ns: int) -> Step:
        refusals = [refusal for slot in self._slots for refusal in self._clear(slot, now_ns)]
        heads = [(slot, slot.queue[0]) for slot in self._slots if slot.queue]
        ready = [(slot, entry) for slot, entry in heads if entry is not None]
        if not ready:
            return Step((), refusals)
        oldest = min(entry.enqueued_ns for _, entry in ready)
        wake = oldest + self._delay_ns
        if len(ready) / len(self._slots) < self._utilization and now_ns < wake:
            return Step((), refusals, wake)
        return Step(self._collect(ready, now_ns, refusals), refusals)

    def _clear(self, slot: Slot, now_ns: int) -> list[Refusal]:
        """End the sequence in ``slot`` if it was idle for too long or its next request was cancelled."""
        refusals: list[Refusal] = []
        while slot.queue and (slot.queue[0] is None or slot.queue[0].request.cancelled):
            refusals += [Refusal.cancelled(entry.request) for entry in self._table.release(slot, now_ns)]
        return refusals

    def _collect(self, ready: list[tuple[Slot, Entry]], now_ns: int, refusals: list[Refusal]) -> list[InferRequest]:
        """The batch: a request of every slot up to the last one that is ready, or a placeholder."""
        first = ready[0][1]
        key = self._key(*ready[0])
        fitting = {slot.index: (slot, entry) for slot, entry in ready if self._key(slot, entry) == key}
        batch = []
        placeholder = None
        for index in range(max(fitting) + 1):
            if index not in fitting:
                placeholder = placeholder or self._controls.placeholder(first.request, ready[0][0])
                batch.append(placeholder)
                continue
            slot, entry = fitting[index]
            slot.queue.popleft()
            batch.append(put_into_slot(entry.request, slot, self._controls, lambda: None))
            if entry.request.asked.sequence_end:
                refusals += [Refusal.cancelled(other.request) for other in self._table.release(slot, now_ns)]
        return batch

    def _key(self, slot: Slot, entry: Entry) -> Hashable:
        """Equal for requests that may share a batch. The states of a sequence are known only when its turn comes."""
        states = self._controls.states
        return entry.key if states is None else (entry.key, states.shapes(slot.states, entry.request))

    def sweep(self) -> list[Refusal]:
        """Nothing waits here that is not in a slot's queue."""
        return []

    @property
    def waiting(self) -> int:
        """How many requests have a slot and are not in a batch yet."""
        return len(self)

    def drain(self) -> list[InferRequest]:
        entries = [entry for slot in self._slots for entry in slot.queue if entry is not None]
        for slot in self._slots:
            slot.queue.clear()
        return [entry.request for entry in entries]


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
