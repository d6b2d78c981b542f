"""The plain scheduler for instances that are given several requests at once."""

from collections import deque
from collections.abc import Sequence
from queue import Empty
from typing import Final

from repoagent.serving.instances.base import Instance
from repoagent.serving.instances.queueing import QueueingNativeInstance
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.scheduling.clock import Clock
from repoagent.serving.scheduling.direct import NativeScheduler
from repoagent.serving.scheduling.steps import Entry

__all__ = ["AheadScheduler"]

_MOST_BYTES: Final = 256 << 10
"""Large tensors cost more than being woken up does, and share memory with all that is sent along."""


class AheadScheduler(NativeScheduler):
    """First come, first served; every request is executed by itself, but what waits is handed over together.

    As much as the instance asks for, and no more than its share among the instances. Cancelled requests and those
    whose time is over are found before that. What is handed over and comes back, because the one before it takes long
    or the instance breaks down, goes to the next free instance before all others, alone.
    """

    def __init__(
        self,
        model_name: str,
        instances: Sequence[Instance],
        statistics: ModelStatistics,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(model_name, instances, statistics, clock)
        self._returned: deque[Entry] = deque()

    def _execute_here(self, request: InferRequest) -> None:
        instance = None if self._waiting else self._pool.take_idle()
        if instance is None:
            self.submit(request)
            return
        try:
            self._execute(instance, request)
        finally:
            self._pool.give(instance)

    def _drain(self, instance: Instance, entry: Entry) -> None:
        self._execute_returned(instance)
        claimed = [entry for entry in self._together(instance, entry) if self._claim(entry)]
        if len(claimed) > 1 and isinstance(instance, QueueingNativeInstance):
            self._execute_each(instance, claimed)
        else:
            for one in claimed:
                self._execute(instance, one.request)
        self._execute_returned(instance)

    def _execute_each(self, instance: QueueingNativeInstance, entries: Sequence[Entry]) -> None:
        going = {}
        for entry in entries:
            request = entry.request
            if request.cancelled or self._closed or self._expired(request):
                self._refuser.answer(self._refusal(request))
            else:
                going[request] = entry
        if going:
            instance.execute_each(list(going), lambda back: self._take_back([going[request] for request in back]))

    def _together(self, instance: Instance, entry: Entry) -> list[Entry]:
        """``entry`` and what of this instance's share behind it may be handed over with it."""
        entries = [entry]
        if self._pool.for_one or not isinstance(instance, QueueingNativeInstance):
            return entries
        size = _bytes(entry.request)
        for _ in range(min(instance.ahead - 1, self._line.qsize() // len(self._instances))):
            if size > _MOST_BYTES:
                break
            try:
                following = self._line.get_nowait()
            except Empty:
                break
            if following is None:  # The mark to stop is for a worker, not for an instance.
                self._line.put(None)
                break
            if following not in self._returned:
                entries.append(following)
                size += _bytes(following.request)
        return entries

    def _take_back(self, entries: Sequence[Entry]) -> None:
        """Let ``entries`` wait again, before all others. The line only wakes a worker up for them."""
        for entry in entries:
            self._returned.append(entry)
            self._let_wait(entry)

    def _execute_returned(self, instance: Instance) -> None:
        """Execute what came back, one by one: alone, it cannot come back again."""
        while self._returned:
            try:
                entry = self._returned.popleft()
            except IndexError:  # Another worker was faster.
                return
            self._execute_waiting(instance, entry)


def _bytes(request: InferRequest) -> int:
    return sum(tensor.array.nbytes for tensor in request.inputs.values())
