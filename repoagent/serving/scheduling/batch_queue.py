"""Requests that wait until they become a batch: Triton's priorities, queue policies and preferred sizes.

Without threads and without a clock.
"""

import bisect
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from repoagent.config import ModelConfig
from repoagent.config.model_config_pb2 import ModelDynamicBatching, ModelQueuePolicy
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.scheduling.steps import TOLERATED, Deadlines, Entry, EntryState, Refusal, Step


class BatchRule:
    """The rule of one model: same shapes apart from the batch, same shape values, same choice of optional inputs."""

    __slots__ = ("_batched", "_optional", "_shapes", "_variable", "trivial")

    def __init__(self, config: ModelConfig) -> None:
        batching = config.max_batch_size > 0
        self._batched = tuple(item.name for item in config.input if batching and not item.is_shape_tensor)
        states = [state.input_name for state in config.sequence_batching.state if -1 in state.dims]
        uneven = [item for item in config.input if -1 in item.dims and not item.allow_ragged_batch]
        inputs = [item.name for item in uneven if not item.is_shape_tensor]
        self._variable = (*inputs, *states)
        self._shapes = tuple(item.name for item in config.input if item.is_shape_tensor)
        self._optional = tuple(item.name for item in config.input if item.optional)
        self.trivial = not (self._variable or self._shapes or self._optional)
        """Any requests may share a batch."""

    def size(self, request: InferRequest) -> int:
        """How many inferences ``request`` asks for, at least 1."""
        for name in self._batched:
            tensor = request.inputs.get(name)
            if tensor is not None:
                rows: int = tensor.array.shape[0]
                return rows or 1
        return 1

    def key(self, request: InferRequest) -> Hashable:
        """Equal for requests that may share a batch; so is None for all, if the rule is trivial."""
        if self.trivial:
            return None
        inputs = request.inputs
        return (
            tuple(inputs[name].array.shape[1:] for name in self._variable if name in inputs),
            tuple(inputs[name].array.tobytes() for name in self._shapes if name in inputs),
            tuple(name in inputs for name in self._optional),
        )


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """How the requests of one priority level wait."""

    delays: bool = False
    """A request whose time is over waits on behind the others; else it is refused."""
    timeout_ns: int = 0
    """How long a request may wait; 0 for as long as it takes."""
    allow_override: bool = True
    """A request may ask for a shorter time. It always may where a configuration has no policy."""
    max_size: int = 0
    """How many may wait; 0 for any number."""

    @classmethod
    def of(cls, policy: ModelQueuePolicy) -> "QueuePolicy":
        """The policy that a configuration describes."""
        return cls(
            delays=policy.timeout_action == policy.DELAY,
            timeout_ns=policy.default_timeout_microseconds * 1000,
            allow_override=policy.allow_timeout_override,
            max_size=policy.max_queue_size,
        )

    def time_for(self, asked_us: int) -> int:
        """The nanoseconds that a request which asks for ``asked_us`` (0: for nothing) may wait; 0 for no limit."""
        if self.allow_override and asked_us and (not self.timeout_ns or asked_us * 1000 < self.timeout_ns):
            return asked_us * 1000
        return self.timeout_ns

    @property
    def trivial(self) -> bool:
        """Whether requests simply wait, for as long as they themselves want."""
        return not (self.timeout_ns or self.max_size)


@dataclass(frozen=True, slots=True)
class BatchSettings:
    """How requests become batches."""

    max_batch_size: int = 1
    preferred: frozenset[int] = frozenset({1})
    """A batch of one of these sizes goes at once. Not empty."""
    delay_ns: int = 0
    """How long a request may wait for others."""
    preserve_ordering: bool = False
    levels: int = 0
    """Number of priority levels, 1 being the most urgent; 0 for a single queue."""
    default_level: int = 0
    policy: QueuePolicy = QueuePolicy()
    level_policies: Mapping[int, QueuePolicy] = field(default_factory=dict)

    @classmethod
    def of(cls, config: ModelConfig) -> "BatchSettings":
        """The settings in ``dynamic_batching``, or in the ``oldest`` strategy of ``sequence_batching``."""
        largest = max(1, config.max_batch_size)
        if config.HasField("sequence_batching"):
            oldest = config.sequence_batching.oldest
            return cls(
                max_batch_size=largest,
                preferred=frozenset(oldest.preferred_batch_size) or frozenset({largest}),
                delay_ns=oldest.max_queue_delay_microseconds * 1000,
                preserve_ordering=oldest.preserve_ordering,
                # A sequence that lost a request in the middle would be worth nothing.
                policy=QueuePolicy(allow_override=False),
            )
        return cls._of_dynamic(config.dynamic_batching, largest)

    @classmethod
    def _of_dynamic(cls, batching: ModelDynamicBatching, largest: int) -> "BatchSettings":
        return cls(
            max_batch_size=largest,
            preferred=frozenset(batching.preferred_batch_size) or frozenset({largest}),
            delay_ns=batching.max_queue_delay_microseconds * 1000,
            preserve_ordering=batching.preserve_ordering,
            levels=batching.priority_levels,
            default_level=batching.default_priority_level,
            policy=QueuePolicy.of(batching.default_queue_policy)
            if batching.HasField("default_queue_policy")
            else QueuePolicy(),
            level_policies={level: QueuePolicy.of(policy) for level, policy in batching.priority_queue_policy.items()},
        )

    def level_of(self, priority: int) -> int:
        """The level of a request with that ``priority``; 0 and what lies beyond the last level mean the default."""
        if not self.levels:
            return 0
        return priority if 1 <= priority <= self.levels else self.default_level

    def policy_of(self, level: int) -> QueuePolicy:
        """How the requests of ``level`` wait."""
        return self.level_policies.get(level, self.policy) if self.levels else self.policy

    @property
    def first_come(self) -> bool:
        """Whether requests are executed in the order in which they come, and any number of them can wait for it."""
        return not self.levels and all(policy.trivial for policy in (self.policy, *self.level_policies.values()))

    @property
    def plain(self) -> bool:
        """Whether requests simply wait, one after the other, until they are executed."""
        return self.first_come and not self.delay_ns


_WAITING: Final = EntryState.WAITING
_DELAYED: Final = EntryState.DELAYED
_GONE: Final = EntryState.GONE


class _Level:
    """One priority level. Its queues may hold entries that have left them; those are skipped."""

    __slots__ = ("count", "delayed", "policy", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.waiting: deque[Entry] = deque()
        self.delayed: deque[Entry] = deque()
        self.count = 0

    @property
    def queues(self) -> tuple[tuple[deque[Entry], EntryState], ...]:
        """In the order in which they are served, each with the state of what is in it."""
        return ((self.waiting, _WAITING), (self.delayed, _DELAYED))

    def trim(self) -> None:
        """Forget what has left from the front."""
        for queue, state in self.queues:
            while queue and queue[0].state is not state:
                queue.popleft()

    def tidy(self) -> None:
        """Forget what has left, wherever it stands."""
        self.waiting = deque(entry for entry in self.waiting if entry.state is _WAITING)
        self.delayed = deque(entry for entry in self.delayed if entry.state is _DELAYED)


class BatchQueue:
    """Requests that wait for each other. Not thread-safe; a :class:`~.steps.BatchSource`.

    They are in order: the most urgent level first, and first come, first served within a level. The next ones, as many
    as fit together, are the *pending* ones. Of these go at once:

    * as many as make the largest preferred size, or as can be without exceeding the largest of all preferred sizes,
      unless one has already waited for the whole delay;
    * all, if the next request does not fit to them, if one has waited for the whole delay, or if there is no delay.
    """

    def __init__(self, settings: BatchSettings, rule: BatchRule) -> None:
        self._settings = settings
        self._rule = rule
        self._largest_preferred = max(settings.preferred)
        self._first_come = settings.first_come
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []
        self._deadlines: Deadlines[Entry] = Deadlines(lambda entry: entry.state is _WAITING)
        self._count = 0
        self._size = 0
        """How many inferences the requests ask for together."""
        self._ripe_at = 0
        self._key: object = None

    def __len__(self) -> int:
        return self._count

    @property
    def ripe(self) -> bool:
        return self._size >= self._ripe_at

    @property
    def full(self) -> bool:
        """As many requests wait as fit into a batch, and nothing can happen to them but that they are executed in the
        order in which they came, or cancelled: waiting longer would not make the next batch any better."""
        return self._size >= self._largest_preferred and self._first_come and self.deadline_ns is None

    @property
    def deadline_ns(self) -> int | None:
        """When the next request has waited too long."""
        return self._deadlines.next_ns if self._deadlines else None

    def put(self, request: InferRequest, now_ns: int) -> bool:
        """Add ``request``; False if its level is full."""
        rule, settings = self._rule, self._settings
        number = settings.level_of(request.asked.priority) if settings.levels else 0
        level = self._levels.get(number) or self._new_level(number)
        policy = level.policy
        if policy.max_size and level.count >= policy.max_size:
            return False
        key = None if rule.trivial else rule.key(request)
        entry = Entry(request, rule.size(request), now_ns, key, number)
        if policy.timeout_ns or request.asked.timeout_us:
            self._set_deadline(entry, policy)
        if self._deadlines and len(level.waiting) > 2 * level.count + TOLERATED:  # Nothing else leaves out of turn.
            level.tidy()
        level.waiting.append(entry)
        level.count += 1
        self._count += 1
        self._size += entry.size
        if key != self._key:
            self._ripe_at = 0  # It may be what the pending requests must not wait for.
        return True

    def _set_deadline(self, entry: Entry, policy: QueuePolicy) -> None:
        time_ns = policy.time_for(entry.request.asked.timeout_us)
        if time_ns:
            self._deadlines.add(entry.enqueued_ns + time_ns, entry, self._count)

    def _new_level(self, number: int) -> _Level:
        # Clients choose the levels, of which there may be billions.
        if len(self._order) >= TOLERATED + self._count:
            self._levels = {known: level for known, level in self._levels.items() if level.count}
            self._order = sorted(self._levels)
        level = self._levels[number] = _Level(self._settings.policy_of(number))
        bisect.insort(self._order, number)
        return level

    def _in_order(self) -> Iterator[Entry]:
        """What waits. An entry may leave while this goes on."""
        for number in self._order:
            level = self._levels[number]
            for queue, state in level.queues if level.count else ():
                for entry in queue:
                    if entry.state is state:
                        yield entry

    def _remove(self, entries: Sequence[Entry]) -> None:
        for entry in entries:
            self._leave(entry)
        for number in {entry.level for entry in entries}:
            self._levels[number].trim()

    def _leave(self, entry: Entry) -> None:
        entry.state = _GONE
        self._levels[entry.level].count -= 1
        self._count -= 1
        self._size -= entry.size

    def next(self, now_ns: int) -> Step:
        refusals = self.expire(now_ns) if self._deadlines else []
        pending, complete, best = self._pending(refusals)
        count = self._ready(pending, complete, best, now_ns)
        if count:
            taken = pending[:count]
            self._remove(taken)
            self._ripe_at = 0
            return Step([entry.request for entry in taken], refusals)
        if not pending:
            self._ripe_at = 0
            return Step((), refusals)
        size = sum(entry.size for entry in pending)
        self._ripe_at = min(preferred for preferred in self._settings.preferred if preferred > size)
        self._key = pending[0].key
        return Step((), refusals, min(entry.enqueued_ns for entry in pending) + self._settings.delay_ns)

    def _pending(self, refusals: list[Refusal]) -> tuple[list[Entry], bool, int]:
        """The pending entries, whether no more can join them, and how many of them make the best preferred size."""
        most, preferred, largest = self._settings.max_batch_size, self._settings.preferred, self._largest_preferred
        pending: list[Entry] = []
        size = best = 0
        for entry in self._in_order():
            if entry.request.cancelled:
                self._leave(entry)
                refusals.append(Refusal.cancelled(entry.request))
                continue
            if pending:
                together = size + entry.size
                if together > largest and not best:
                    best = len(pending)
                if together > most or entry.key != pending[0].key:
                    return pending, True, best
            pending.append(entry)
            size += entry.size
            if size in preferred:
                best = len(pending)
            if size >= most:
                break
        return pending, size >= largest, best

    def _ready(self, pending: list[Entry], complete: bool, best: int, now_ns: int) -> int:
        """How many of ``pending`` go now."""
        if not pending:
            return 0
        delay = self._settings.delay_ns
        overdue = delay and now_ns - min(entry.enqueued_ns for entry in pending) >= delay
        if best and not overdue:
            return best
        return len(pending) if complete or overdue or not delay else 0

    def expire(self, now_ns: int) -> list[Refusal]:
        """Take out the requests that have waited too long and that their level's policy refuses; delay the others."""
        refused = []
        for entry in self._deadlines.over(now_ns):
            level = self._levels[entry.level]
            if level.policy.delays:
                entry.state = _DELAYED
                level.delayed.append(entry)
            else:
                refused.append(entry)
        self._remove(refused)
        return [Refusal.expired(entry.request) for entry in refused]

    def sweep(self) -> list[Refusal]:
        """Take out the requests that were cancelled."""
        cancelled = [entry for entry in self._in_order() if entry.request.cancelled]
        self._remove(cancelled)
        for level in self._levels.values():
            level.tidy()
        return [Refusal.cancelled(entry.request) for entry in cancelled]

    def drain(self) -> list[InferRequest]:
        entries = list(self._in_order())
        self._remove(entries)
        for level in self._levels.values():
            level.tidy()
        return [entry.request for entry in entries]
