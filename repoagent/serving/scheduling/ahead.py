"""The plain scheduler for instances that are given several requests at once."""

from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final

from repoagent.serving.instances.instance import Instance
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.tensor import DataType
from repoagent.serving.scheduling.direct import DirectScheduler
from repoagent.serving.scheduling.steps import Clock, Entry

_MOST_BYTES: Final = 256 << 10
"""Large tensors cost more than being woken up does, and share memory with all that is sent along."""
_ELEMENT_BYTES: Final = 64
"""What an element of BYTES counts: to write it takes as long as to copy that."""


class AheadScheduler(DirectScheduler):
    """First come, first served; every request is executed by itself, but what waits is handed over together.

    As much as the instance asks for, and no more than its share among the instances. Cancelled requests and those
    whose time is over are found before that. What is handed over and comes back, because the one before it takes long
    or the instance breaks down, goes to the next free instance before all others, alone.

    Requests that come on an event loop with a :class:`LoopReader` need no other thread: the loop hands them over, and
    takes the answers. It attends to an instance, from the first of such requests until none waits. When it
    attends to all of them, no worker is called.
    """

    def __init__(
        self,
        model_name: str,
        instances: Sequence[Instance],
        statistics: ModelStatistics,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(model_name, instances, statistics, clock)
        self._queue.attended = self._all_attended
        self._attended: dict[Instance, LoopReader] = {}
        self._returned: deque[Entry] = deque()

    def _entry(self, request: InferRequest) -> Entry:
        return Entry(request, 1, self.clock.now_ns(), reader=LoopReader.here())

    def _execute_here(self, request: InferRequest) -> None:
        instance = None if self._queue.waiting else self._pool.take_idle()
        if instance is None:
            self.submit(request)
            return
        try:
            self._execute(instance, request)
        finally:
            self._pool.give(instance)

    # -- on an event loop ------------------------------------------------------------------------------------------

    def _all_attended(self) -> bool:
        return len(self._attended) >= len(self.instances) and all(map(self._attended.__contains__, self.instances))

    def _execute_now(self, request: InferRequest) -> bool:
        """Hand ``request`` over on this thread; False if that was not done."""
        reader = LoopReader.here()
        if reader is None or request.cancelled or self._closed or _bytes(request) > _MOST_BYTES:
            return False
        instance = self._take_attendable()
        if instance is None:
            return False
        self._attended[instance] = reader
        self._begin(instance, [Entry(request, 1, self.clock.now_ns(), reader=reader)], reader)
        return True

    def _take_attendable(self) -> Instance | None:
        instance = self._pool.take_idle()
        if instance is None:
            return None
        if instance.ready_for_loop:
            return instance
        self._pool.give(instance)
        return None

    def _begin(self, instance: Instance, entries: Sequence[Entry], reader: LoopReader) -> None:
        given = {entry.request: entry for entry in entries}
        beginning = True

        def ended() -> None:
            # Not here, if nothing came of it: the next ones may fare no better, one inside the other.
            if not (beginning and reader.post(partial(self._ended, instance, reader))):
                self._ended(instance, reader)

        def give_back(requests: Sequence[InferRequest]) -> None:
            self._take_back([given[request] for request in requests])

        instance.begin_each(list(given), give_back, ended, reader)
        beginning = False

    def _ended(self, instance: Instance, reader: LoopReader) -> None:
        """What was begun is over. On any thread; the loop then goes on with what waits."""
        if self._queue and LoopReader.here() is not reader and reader.post(partial(self._ended, instance, reader)):
            return
        del self._attended[instance]
        self._pool.give(instance)
        if self._queue:
            self._attend(reader)

    def _attend(self, reader: LoopReader) -> None:
        """Hand over what waits, on the loop's thread; a worker does what the loop had better not."""
        instance = self._take_attendable() if LoopReader.here() is reader else None
        going: list[Entry] = []
        while instance is not None and not going and (first := self._queue.take()) is not None:
            if first.reader is None or first in self._returned or _bytes(first.request) > _MOST_BYTES:
                self._queue.put_back(first)
                break
            going = self._going(self._together(instance, first))
        if instance is not None and going:
            self._attended[instance] = reader
            self._begin(instance, going, reader)
        else:
            self._leave_to_worker(instance)

    def _leave_to_worker(self, instance: Instance | None) -> None:
        if instance is not None:
            self._pool.give(instance)
        if self._queue:
            self._queue.call()

    def _let_go(self, instance: Instance) -> None:
        """A worker has done its share; what came on an event loop meanwhile goes on there."""
        first = self._queue.first
        reader = None if first is None else first.reader
        if reader is not None and instance.ready_for_loop:
            self._attended[instance] = reader
            if reader.post(partial(self._ended, instance, reader)):
                return
            del self._attended[instance]  # The loop has ended.
        self._leave_to_worker(instance)

    # -- on a worker -----------------------------------------------------------------------------------------------

    def _drain(self, instance: Instance, entry: Entry) -> None:
        self._execute_returned(instance)
        going = self._going(self._together(instance, entry))
        if len(going) > 1:
            given = {entry.request: entry for entry in going}
            instance.execute_each(list(given), lambda back: self._take_back([given[request] for request in back]))
        elif going:
            self._execute(instance, going[0].request)
        self._execute_returned(instance)

    def _going(self, entries: Sequence[Entry]) -> list[Entry]:
        """Take ``entries`` out of the queue; those that need not be executed any more are answered."""
        going = []
        for entry in entries:
            if self._queue.claim(entry):
                request = entry.request
                if request.cancelled or self._closed or self._expired(request):
                    self.turn_away(request)
                else:
                    going.append(entry)
        return going

    def _together(self, instance: Instance, entry: Entry) -> list[Entry]:
        """``entry`` and what of this instance's share behind it may be handed over with it."""
        entries = [entry]
        if self._pool.for_one:
            return entries
        size = _bytes(entry.request)
        for _ in range(min(instance.ahead - 1, len(self._queue) // len(self.instances))):
            following = self._queue.take()
            if following is None:
                break
            size += _bytes(following.request)
            if size > _MOST_BYTES or following in self._returned:
                self._queue.put_back(following)
                break
            entries.append(following)
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

    def resize(self, added: Sequence[Instance], removed: Sequence[Instance]) -> None:
        super().resize(added, removed)
        for _ in range(len(self._queue)):  # What no worker was called for.
            self._queue.call()


def _bytes(request: InferRequest) -> int:
    """How much there is to be copied; of strings without end only that it is too much."""
    size = 0
    for tensor in request.inputs.values():
        array = tensor.array
        if tensor.data_type is DataType.BYTES:
            size += array.size * _ELEMENT_BYTES
            if size <= _MOST_BYTES:
                size += sum(map(len, array.ravel()))
        else:
            size += array.nbytes
    return size
