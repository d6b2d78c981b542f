"""Which sequence has which slot, and which sequences wait for one. Without threads and without a clock."""

import heapq
import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from repoagent.errors import InvalidArgumentError
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.steps import Entry

logger = logging.getLogger(__name__)

CorrelationId = int | str


@dataclass(slots=True, eq=False)
class Slot:
    """A place for one sequence at one instance."""

    lane: int
    """Number of the instance."""
    index: int
    """Which of its slots; in direct scheduling, the row of the batch."""
    queue: deque[Entry | None] = field(default_factory=deque)
    """The requests of the sequence that wait; None at the end: the sequence was idle for too long."""
    sequence: CorrelationId | None = None
    in_flight: bool = False
    """A request of the sequence is waiting in a batcher or being executed (oldest only)."""
    ending: bool = False
    """That request is the last one of the sequence."""
    states: Mapping[str, Tensor] = field(default_factory=dict)
    """The implicit states of the sequence, by the names of the inputs that they become."""


@dataclass(slots=True, eq=False)
class _Backlog:
    """A sequence that waits for a slot, and its requests so far."""

    sequence: CorrelationId
    entries: deque[Entry | None] = field(default_factory=deque)
    deadline_ns: int | None = None


class SequenceTable:
    """The slots of all instances and the sequences in them. Not thread-safe.

    ``changed`` is called when a sequence that waited gets a slot, from when on it may be idle: see :attr:`due_ns`.
    """

    def __init__(
        self, model_name: str, slots: Iterable[Slot], idle_ns: int, changed: Callable[[], None] = lambda: None
    ) -> None:
        self._model_name = model_name
        self._idle_ns = idle_ns
        self._changed = changed
        self._retired = False
        self._every_slot = tuple(slots)
        # The lowest slot of every instance first: sequences spread, and the batches of direct scheduling stay short.
        self._free = [(slot.index, slot.lane, slot) for slot in self._every_slot]
        heapq.heapify(self._free)
        self._slots: dict[CorrelationId, Slot] = {}
        self._active_ns: OrderedDict[CorrelationId, int] = OrderedDict()
        self._backlogs: dict[CorrelationId, _Backlog] = {}
        self._line: deque[_Backlog] = deque()

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return sum(len(backlog.entries) for backlog in self._line)

    def place(self, entry: Entry, now_ns: int) -> Slot | None:
        """Put ``entry`` into the slot of its sequence and return the slot; None if the sequence waits for one.
        ``InvalidArgumentError`` if the sequence is not known, and this is not its start."""
        request = entry.request
        sequence = request.asked.correlation_id
        slot, backlog = self._slots.get(sequence), self._backlogs.get(sequence)
        if slot is None and backlog is None and not request.asked.sequence_start:
            raise InvalidArgumentError(
                f"inference request for sequence {sequence} to model '{self._model_name}' must specify the START flag "
                "on the first request of the sequence"
            )
        if request.asked.sequence_start and (slot is not None or backlog is not None):
            logger.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence "
                "start. Previous sequence will be terminated early.",
                sequence,
                self._model_name,
            )
        if slot is None and backlog is None and self._free:
            slot = heapq.heappop(self._free)[2]
            slot.sequence = sequence
            self._slots[sequence] = slot
        if slot is None:
            self._wait(entry, backlog or self._new_backlog(sequence))
            return None
        slot.queue.append(entry)
        self._touch(sequence, now_ns)
        if request.asked.sequence_end:
            self._forget(sequence)
        return slot

    def _new_backlog(self, sequence: CorrelationId) -> _Backlog:
        backlog = self._backlogs[sequence] = _Backlog(sequence)
        self._line.append(backlog)
        return backlog

    def _wait(self, entry: Entry, backlog: _Backlog) -> None:
        backlog.entries.append(entry)
        if entry.request.asked.timeout_us:
            deadline = entry.enqueued_ns + entry.request.asked.timeout_us * 1000
            backlog.deadline_ns = deadline if backlog.deadline_ns is None else min(backlog.deadline_ns, deadline)
        if entry.request.asked.sequence_end:
            del self._backlogs[backlog.sequence]

    def _touch(self, sequence: CorrelationId, now_ns: int) -> None:
        self._active_ns[sequence] = now_ns
        self._active_ns.move_to_end(sequence)

    def _forget(self, sequence: CorrelationId) -> None:
        del self._slots[sequence]
        del self._active_ns[sequence]

    def _forget_slot(self, slot: Slot) -> None:
        if slot.sequence is not None and self._slots.get(slot.sequence) is slot:
            self._forget(slot.sequence)

    def release(self, slot: Slot, now_ns: int) -> list[Entry]:
        """The sequence of ``slot`` is over: give the slot to the sequence that has waited longest.

        Returns the requests that will not be executed: what the ended sequence has left, and sequences that waited and
        of which a request was cancelled.
        """
        left_over = _requests(slot.queue)
        slot.queue.clear()
        slot.states = {}
        self._forget_slot(slot)
        while self._line:
            backlog = self._line.popleft()
            goes_on = self._backlogs.get(backlog.sequence) is backlog
            if goes_on:
                del self._backlogs[backlog.sequence]
            if _any_cancelled(backlog.entries):
                left_over += _requests(backlog.entries)
                continue
            self._occupy(slot, backlog, goes_on, now_ns)
            return left_over
        slot.sequence = None
        heapq.heappush(self._free, (slot.index, slot.lane, slot))
        return left_over

    def _occupy(self, slot: Slot, backlog: _Backlog, goes_on: bool, now_ns: int) -> None:
        slot.sequence = backlog.sequence
        slot.queue = backlog.entries
        if not goes_on:
            return
        if self._retired:
            slot.queue.append(None)
            return
        self._slots[backlog.sequence] = slot
        self._touch(backlog.sequence, now_ns)
        self._changed()

    def retire(self, now_ns: int) -> list[Slot]:
        """No further request will come: end all sequences, as :meth:`reap` does, and those in line in their turn."""
        self._retired = True
        self._idle_ns = 0
        return self.reap(now_ns)

    def reap(self, now_ns: int) -> list[Slot]:
        """End the sequences that had no request for too long; their slots, with None at the end of the queue."""
        ended = []
        while self._active_ns:
            sequence, active_ns = next(iter(self._active_ns.items()))
            if now_ns - active_ns < self._idle_ns:
                break
            slot = self._slots[sequence]
            self._forget(sequence)
            slot.queue.append(None)
            ended.append(slot)
        return ended

    def end(self, sequence: CorrelationId) -> Slot | None:
        """End a sequence that has nothing waiting; its slot, with None at the end of the queue, if it has one."""
        slot = self._slots.get(sequence)
        if slot is not None:
            self._forget(sequence)
            slot.queue.append(None)
        return slot

    def expire(self, now_ns: int) -> list[Entry]:
        """Give up the waiting sequences of which a request has waited for longer than its timeout."""
        return self._give_up([b for b in self._line if b.deadline_ns is not None and b.deadline_ns <= now_ns])

    def _give_up(self, backlogs: Iterable[_Backlog]) -> list[Entry]:
        entries = []
        for backlog in backlogs:
            self._line.remove(backlog)
            if self._backlogs.get(backlog.sequence) is backlog:
                del self._backlogs[backlog.sequence]
            entries += _requests(backlog.entries)
        return entries

    def sweep(self) -> tuple[list[Entry], list[Slot]]:
        """End the sequences of which a request that waits was cancelled.

        Returns all their requests that wait, and the slots that they have, with nothing but None in the queue.
        """
        cancelled = self._give_up([backlog for backlog in self._line if _any_cancelled(backlog.entries)])
        slots = [slot for slot in self._every_slot if _any_cancelled(slot.queue)]
        for slot in slots:
            cancelled += _requests(slot.queue)
            self._forget_slot(slot)
            slot.queue.clear()
            slot.queue.append(None)
        return cancelled, slots

    @property
    def due_ns(self) -> int | None:
        """When :meth:`reap` or :meth:`expire` will have something to do that a waiting sequence needs; None: never."""
        times = [backlog.deadline_ns for backlog in self._line if backlog.deadline_ns is not None]
        if self._line and self._active_ns:
            times.append(next(iter(self._active_ns.values())) + self._idle_ns)
        return min(times, default=None)

    def drain(self) -> list[Entry]:
        """Take out everything that waits for a slot."""
        entries = [entry for backlog in self._line for entry in _requests(backlog.entries)]
        self._line.clear()
        self._backlogs.clear()
        return entries


def _requests(queue: Iterable[Entry | None]) -> list[Entry]:
    return [entry for entry in queue if entry is not None]


def _any_cancelled(queue: Iterable[Entry | None]) -> bool:
    return any(entry.request.cancelled for entry in _requests(queue))
