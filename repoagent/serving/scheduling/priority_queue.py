"""Requests that wait, by priority level, each level with its own policy."""

import bisect
from collections import deque
from collections.abc import Iterable
from typing import Final

from repoagent.serving.scheduling.deadlines import TOLERATED, Deadlines
from repoagent.serving.scheduling.settings import BatchSettings, QueuePolicy
from repoagent.serving.scheduling.steps import Entry, EntryState

__all__ = ["PriorityQueue"]

_WAITING: Final = EntryState.WAITING
_DELAYED: Final = EntryState.DELAYED


class _Level:
    """One level. The two lines may hold entries that are not theirs any more; those are skipped."""

    __slots__ = ("count", "delayed", "policy", "waiting")

    def __init__(self, policy: QueuePolicy) -> None:
        self.policy = policy
        self.waiting: deque[Entry] = deque()
        self.delayed: deque[Entry] = deque()
        self.count = 0

    def line(self, state: EntryState) -> deque[Entry]:
        return self.waiting if state is _WAITING else self.delayed

    def tidy(self) -> None:
        """Throw entries that left before their turn out of memory when they are the most."""
        if len(self.waiting) > 2 * self.count + TOLERATED:
            self.waiting = deque(entry for entry in self.waiting if entry.state is _WAITING)

    def sweep(self) -> list[Entry]:
        """Take out the entries whose requests were cancelled, and those that left before their turn."""
        lines = ((self.waiting, _WAITING), (self.delayed, _DELAYED))
        cancelled = [
            entry for line, state in lines for entry in line if entry.state is state and entry.request.cancelled
        ]
        for entry in cancelled:
            entry.state = EntryState.GONE
        self.count -= len(cancelled)
        self.waiting = deque(entry for entry in self.waiting if entry.state is _WAITING)
        self.delayed = deque(entry for entry in self.delayed if entry.state is _DELAYED)
        return cancelled

    def pop(self) -> Entry | None:
        for line, state in ((self.waiting, _WAITING), (self.delayed, _DELAYED)):
            while line:
                entry = line.popleft()
                if entry.state is state:
                    return entry
        return None


class PriorityQueue:
    """First come, first served within a level; the most urgent level first. Not thread-safe."""

    def __init__(self, settings: BatchSettings) -> None:
        self._settings = settings
        self._levels: dict[int, _Level] = {}
        self._order: list[int] = []
        self._deadlines: Deadlines[Entry] = Deadlines(lambda entry: entry.state is _WAITING)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, entry: Entry) -> bool:
        """Add ``entry`` at its level; False if the level is full."""
        level = self._levels.get(entry.level) or self._level(entry.level)
        policy = level.policy
        if policy.max_size and level.count >= policy.max_size:
            return False
        if policy.timeout_ns or entry.request.asked.timeout_us:
            self._set_deadline(entry, policy)
        if self._deadlines:  # Nothing else leaves before its turn.
            level.tidy()
        level.waiting.append(entry)
        level.count += 1
        self._count += 1
        return True

    def _set_deadline(self, entry: Entry, policy: QueuePolicy) -> None:
        time_ns = policy.time_for(entry.request.asked.timeout_us)
        if time_ns:
            entry.deadline_ns = entry.enqueued_ns + time_ns
            self._deadlines.add(entry.deadline_ns, entry, self._count)

    def _level(self, number: int) -> _Level:
        level = self._levels.get(number)
        if level is None:
            self._forget_empty_levels()
            level = self._levels[number] = _Level(self._settings.policy_of(number))
            bisect.insort(self._order, number)
        return level

    def _forget_empty_levels(self) -> None:
        # Clients choose the levels, of which there may be billions.
        if len(self._order) >= TOLERATED + self._count:
            self._levels = {number: level for number, level in self._levels.items() if level.count}
            self._order = sorted(self._levels)

    def pop(self) -> Entry | None:
        """Take the next entry out, whether it is still wanted or not."""
        for number in self._order if self._count else ():
            level = self._levels[number]
            entry = level.pop() if level.count else None
            if entry is not None:
                level.count -= 1
                self._count -= 1
                return entry
        return None

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Undo the :meth:`pop` of ``entries``, which are in the order in which they came."""
        for entry in reversed(list(entries)):
            level = self._level(entry.level)
            level.line(entry.state).appendleft(entry)
            level.count += 1
            self._count += 1

    def expire(self, now_ns: int) -> list[Entry]:
        """Take out the entries whose time is over and that their level's policy refuses; the others are delayed."""
        refused = []
        for entry in self._deadlines.over(now_ns):
            level = self._levels[entry.level]
            if level.policy.delays:
                entry.state = _DELAYED
                level.delayed.append(entry)
                continue
            entry.state = EntryState.GONE
            level.count -= 1
            self._count -= 1
            refused.append(entry)
        return refused

    def sweep(self) -> list[Entry]:
        """Take out the entries whose requests were cancelled."""
        cancelled = [entry for level in self._levels.values() for entry in level.sweep()]
        self._count -= len(cancelled)
        return cancelled

    @property
    def deadline_ns(self) -> int | None:
        """When the next entry's time is over."""
        return self._deadlines.next_ns
