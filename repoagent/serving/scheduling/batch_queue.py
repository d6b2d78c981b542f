"""When the requests that wait become a batch: the rules of Triton's dynamic batcher, without threads or a clock."""

from typing import Final

from repoagent.serving.requests.request import InferRequest
from repoagent.serving.scheduling.batch_rule import BatchRule
from repoagent.serving.scheduling.priority_queue import PriorityQueue
from repoagent.serving.scheduling.settings import BatchSettings
from repoagent.serving.scheduling.steps import Entry, EntryState, Refusal, Step

__all__ = ["BatchQueue"]

_GONE: Final = EntryState.GONE


class BatchQueue:
    """Requests that wait for each other. Not thread-safe; a :class:`~.steps.FullBatchSource`.

    The next requests in order, as many as fit together, are the *pending* ones. Of these go at once:

    * as many as make the largest preferred size, or as can be without exceeding the largest of all preferred sizes,
      unless one has already waited for the whole delay;
    * all, if the next request does not fit to them, if one has waited for the whole delay, or if there is no delay.
    """

    def __init__(self, settings: BatchSettings, rule: BatchRule) -> None:
        self._settings = settings
        self._rule = rule
        self._queue = PriorityQueue(settings)
        self._largest_preferred = max(settings.preferred)
        self._first_come = settings.first_come
        self._size = 0
        self._ripe_at = 0
        self._key: object = None

    def __len__(self) -> int:
        return len(self._queue)

    @property
    def ripe(self) -> bool:
        return self._size >= self._ripe_at

    @property
    def full(self) -> bool:
        return self._size >= self._largest_preferred and self._first_come and self._queue.deadline_ns is None

    @property
    def deadline_ns(self) -> int | None:
        """When the next request has waited too long."""
        return self._queue.deadline_ns

    def put(self, request: InferRequest, now_ns: int) -> bool:
        """Add ``request``; False if there is no room for it."""
        rule, settings = self._rule, self._settings
        level = settings.level_of(request.asked.priority) if settings.levels else 0
        key = None if rule.trivial else rule.key(request)
        entry = Entry(request, rule.size(request), now_ns, key, level)
        if not self._queue.put(entry):
            return False
        self._size += entry.size
        if entry.key != self._key:
            self._ripe_at = 0  # It may be what the pending requests must not wait for.
        return True

    def next(self, now_ns: int) -> Step:
        refusals = self.expire(now_ns)
        pending, complete, best = self._collect(refusals)
        count = self._ready(pending, complete, best, now_ns)
        self._queue.put_back(pending[count:])
        if count:
            return Step(self._take(pending[:count]), refusals)
        if not pending:
            self._ripe_at = 0
            return Step((), refusals)
        size = sum(entry.size for entry in pending)
        self._ripe_at = min(preferred for preferred in self._settings.preferred if preferred > size)
        self._key = pending[0].key
        return Step((), refusals, min(entry.enqueued_ns for entry in pending) + self._settings.delay_ns)

    def _collect(self, refusals: list[Refusal]) -> tuple[list[Entry], bool, int]:
        """The pending entries, whether no more can join them, and how many of them make the best preferred size."""
        most, preferred = self._settings.max_batch_size, self._settings.preferred
        pending: list[Entry] = []
        size = best = 0
        while size < most and (entry := self._queue.pop()) is not None:
            if entry.request.cancelled:
                refusals.append(self._cancel(entry))
                continue
            if pending:
                if size + entry.size > self._largest_preferred and not best:
                    best = len(pending)
                if size + entry.size > most or entry.key != pending[0].key:
                    self._queue.put_back((entry,))
                    return pending, True, best
            pending.append(entry)
            size += entry.size
            if size in preferred:
                best = len(pending)
        return pending, size >= self._largest_preferred, best

    def _ready(self, pending: list[Entry], complete: bool, best: int, now_ns: int) -> int:
        """How many of ``pending`` go now."""
        if not pending:
            return 0
        delay = self._settings.delay_ns
        overdue = delay and now_ns - min(entry.enqueued_ns for entry in pending) >= delay
        if best and not overdue:
            return best
        return len(pending) if complete or overdue or not delay else 0

    def _take(self, entries: list[Entry]) -> list[InferRequest]:
        for entry in entries:
            entry.state = _GONE
            self._size -= entry.size
        self._ripe_at = 0
        return [entry.request for entry in entries]

    def _cancel(self, entry: Entry) -> Refusal:
        entry.state = _GONE
        self._size -= entry.size
        return Refusal.cancelled(entry.request)

    def expire(self, now_ns: int) -> list[Refusal]:
        """Take out the requests that have waited too long."""
        expired = self._queue.expire(now_ns)
        for entry in expired:
            self._size -= entry.size
        return [Refusal.expired(entry.request) for entry in expired]

    def sweep(self) -> list[Refusal]:
        """Take out the requests that were cancelled."""
        cancelled = self._queue.sweep()
        self._size -= sum(entry.size for entry in cancelled)
        return [Refusal.cancelled(entry.request) for entry in cancelled]

    def drain(self) -> list[InferRequest]:
        requests = []
        while (entry := self._queue.pop()) is not None:
            entry.state = _GONE
            requests.append(entry.request)
        self._size = 0
        return requests
