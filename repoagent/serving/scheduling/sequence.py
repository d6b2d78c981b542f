"""The sequence batcher: the requests of a sequence go to the same instance, one after the other. Iterations over it."""

import itertools
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from repoagent.config import ModelConfig
from repoagent.config.model_config_pb2 import TYPE_STRING, ModelSequenceBatching
from repoagent.errors import InvalidArgumentError
from repoagent.serving.instances.instance import Instance, close_all
from repoagent.serving.instances.instance_pool import InstancePool
from repoagent.serving.measuring.statistics import FailureReason, ModelStatistics
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.scheduling.batch_queue import BatchQueue, BatchRule, BatchSettings
from repoagent.serving.scheduling.batching import BatchWorkers, stop_all
from repoagent.serving.scheduling.rate_limiter import new_pool
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.scheduling.sequence_controls import SequenceControls, SequenceStates
from repoagent.serving.scheduling.sequence_slots import DirectSlots, OldestSlots
from repoagent.serving.scheduling.sequence_table import SequenceTable, Slot
from repoagent.serving.scheduling.steps import Clock, Entry, Refusal, Refuser, Watcher
from repoagent.serving.scheduling.wrappers import OrderKeeper

_NEVER_NS: Final = 1 << 62
_EXPIRED: Final = "timeout of the corresponding sequence has been expired"


@dataclass(frozen=True, slots=True)
class _Lane:
    """One instance: its slots and the thread that executes their batches."""

    source: DirectSlots | OldestSlots
    pool: InstancePool[Instance]
    workers: BatchWorkers


class SequenceScheduler(Scheduler):
    """Sequences in the slots of the instances, by the direct or the oldest strategy; ``config`` selects which."""

    def __init__(
        self,
        model_name: str,
        config: ModelConfig,
        instances: Sequence[Instance],
        statistics: ModelStatistics,
        clock: Clock,
        states: SequenceStates | None = None,
    ) -> None:
        super().__init__(model_name)
        self.instances = tuple(instances)
        self._clock = clock
        self._refuser = Refuser(statistics, clock)
        self._rule = BatchRule(config)
        self._controls = SequenceControls(config, states)
        self._lock = threading.Lock()
        slots = [[Slot(lane, index) for index in range(_slot_count(config))] for lane in range(len(instances))]
        idle_ns = config.sequence_batching.max_sequence_idle_microseconds * 1000
        if config.sequence_batching.iterative_sequence:
            idle_ns = _NEVER_NS  # The model decides when its sequences end; see :class:`IterativeScheduler`.
        every_slot = [slot for lane in slots for slot in lane]
        self._table = SequenceTable(model_name, every_slot, idle_ns, lambda: self._watcher.notice())
        self._lanes = [self._lane(config, own, instance) for own, instance in zip(slots, self.instances, strict=True)]
        self._watcher = Watcher(f"repoagent-{model_name}-sequences", self._lock, clock, self, self._refuser)
        self._closed = False

    def _lane(self, config: ModelConfig, slots: list[Slot], instance: Instance) -> _Lane:
        source = self._source(config, slots)
        name = f"repoagent-{self._model_name}-{slots[0].lane}"
        pool = new_pool([instance])
        workers = BatchWorkers(name, 1, pool, source, self._lock, self._clock, self._refuser)
        return _Lane(source, pool, workers)

    def _source(self, config: ModelConfig, slots: list[Slot]) -> DirectSlots | OldestSlots:
        if not config.sequence_batching.HasField("oldest"):
            return DirectSlots(slots, self._table, self._controls, config.sequence_batching.direct)
        settings = BatchSettings.of(config)
        keeper = OrderKeeper() if settings.preserve_ordering else None
        batcher = BatchQueue(settings, self._rule)
        return OldestSlots(slots, self._table, self._controls, batcher, self._finished, keeper)

    def _finished(self, slot: Slot) -> None:
        with self._lock:
            lane = self._lanes[slot.lane]
            if isinstance(lane.source, OldestSlots):
                lane.source.finished(slot, self._clock.now_ns())
                if len(lane.source):
                    lane.workers.kick()

    @property
    def waiting(self) -> int:
        with self._lock:
            return self._table.waiting + sum(lane.source.waiting for lane in self._lanes)

    def submit(self, request: InferRequest) -> None:
        request.on_cancel = self._watcher.on_cancel
        try:
            self._check(request)
            with self._lock:
                refusal = self._place(request)
        except InvalidArgumentError as error:
            refusal = Refusal(request, error, FailureReason.OTHER)
        if refusal is not None:
            self._refuser.answer(refusal)
        elif request.cancelled:
            self._watcher.on_cancel()

    def _check(self, request: InferRequest) -> None:
        if self._rule.size(request) > 1:
            raise InvalidArgumentError(
                f"inference request to model '{self._model_name}' must specify batch-size 1 due to requirements of "
                "sequence batcher"
            )
        self._controls.check(request)

    def _place(self, request: InferRequest) -> Refusal | None:
        if self._closed:
            return Refusal.unloaded(request, self._model_name)
        now = self._clock.now_ns()
        self._end_idle(now)
        slot = self._table.place(Entry(request, 1, now, self._rule.key(request)), now)
        if slot is None:
            self._watcher.notice()
        else:
            self._go_on(slot, now)
        return None

    def end(self, sequence: int | str) -> None:
        """The sequence is over, without a request that ends it; its slot goes to the next that waits."""
        with self._lock:
            slot = self._table.end(sequence)
            if slot is not None:
                self._go_on(slot, self._clock.now_ns())

    def retire(self) -> None:
        """End all sequences, so that those in line get their slots: the next requests of none of them will come."""
        with self._lock:
            now = self._clock.now_ns()
            for slot in self._table.retire(now):
                self._go_on(slot, now)

    def _end_idle(self, now_ns: int) -> None:
        for slot in self._table.reap(now_ns):
            self._go_on(slot, now_ns)

    def _go_on(self, slot: Slot, now_ns: int) -> None:
        lane = self._lanes[slot.lane]
        lane.source.advance(slot, now_ns)
        if len(lane.source):
            lane.workers.kick()

    @property
    def deadline_ns(self) -> int | None:
        return self._table.due_ns

    def expire(self, now_ns: int) -> list[Refusal]:
        """End idle sequences and refuse what has waited too long for a slot."""
        self._end_idle(now_ns)
        return [Refusal.expired(entry.request, _EXPIRED) for entry in self._table.expire(now_ns)]

    def sweep(self) -> list[Refusal]:
        """Refuse what was cancelled, and end the sequences that it belongs to."""
        now_ns = self._clock.now_ns()
        cancelled, slots = self._table.sweep()
        for slot in slots:
            self._go_on(slot, now_ns)
        refusals = [refusal for lane in self._lanes for refusal in lane.source.sweep()]
        return [*(Refusal.cancelled(entry.request) for entry in cancelled), *refusals]

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._watcher.stop()
        for lane in self._lanes:
            lane.pool.close()
        stop_all([lane.workers for lane in self._lanes])
        with self._lock:
            left_over = [request for lane in self._lanes for request in lane.source.drain()]
            left_over += [entry.request for entry in self._table.drain()]
        for request in left_over:
            self._refuser.answer(Refusal.unloaded(request, self._model_name))
        close_all(self.instances)


def _slot_count(config: ModelConfig) -> int:
    """How many sequences an instance takes at once."""
    return config.sequence_batching.oldest.max_candidate_sequences or max(1, config.max_batch_size)


class IterativeScheduler(Scheduler):
    """Makes a sequence of every request: each of its executions is a request of the sequence to ``inner``.

    The first one has the START flag. A sequence ends with the first execution after which the model does not
    reschedule the request; an ID that the client gave it is its own as long as no other request has it.
    """

    def __init__(self, model_name: str, config: ModelConfig, inner: SequenceScheduler) -> None:
        super().__init__(model_name)
        self.inner = inner
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._texts = _ids_are_texts(config)
        self._ids: set[int | str] = set()
        """Of the sequences under way."""

    @property
    def waiting(self) -> int:
        return self.inner.waiting

    def submit(self, request: InferRequest) -> None:
        _Iterations(request, self._begin(request.asked.correlation_id), self).go_on(first=True)

    def _begin(self, given: int | str) -> int | str:
        with self._lock:
            sequence = given
            while not sequence or sequence in self._ids:
                number = next(self._numbers)
                sequence = str(number) if self._texts else number
            self._ids.add(sequence)
        return sequence

    def end(self, sequence: int | str) -> None:
        """The sequence has no further request."""
        self.inner.end(sequence)
        with self._lock:
            self._ids.discard(sequence)

    # retire does nothing: the requests that have come still have requests to their sequences.

    def close(self) -> None:
        self.inner.close()


class _Iterations:
    """One request and its executions; the sender of each of them."""

    def __init__(self, request: InferRequest, sequence: int | str, scheduler: IterativeScheduler) -> None:
        self._request = request
        self._sequence = sequence
        self._scheduler = scheduler
        self._turn = request

    def go_on(self, *, first: bool) -> None:
        request = self._request
        turn = self._turn = InferRequest(
            replace(
                request.asked,
                inputs=request.inputs,
                correlation_id=self._sequence,
                sequence_start=first,
                sequence_end=False,
            ),
            self,
        )
        turn.arrival_ns = request.arrival_ns if first else time.monotonic_ns()
        turn.classes = request.classes
        turn.output_places = request.output_places
        request.on_cancel = turn.cancel
        turn.cancelled = request.cancelled  # Perhaps since it was copied.
        self._scheduler.inner.submit(turn)

    def send(self, response: InferResponse | None, final: bool) -> None:
        if final and self._turn.rescheduled:
            self.go_on(first=False)
            return
        if final:
            self._request.times = self._turn.times
            self._request.on_cancel = None
            self._scheduler.end(self._sequence)
        self._request.send(response, final)


def _ids_are_texts(config: ModelConfig) -> bool:
    kind = ModelSequenceBatching.Control.CONTROL_SEQUENCE_CORRID
    controls = [control for item in config.sequence_batching.control_input for control in item.control]
    return any(control.kind == kind and control.data_type == TYPE_STRING for control in controls)
