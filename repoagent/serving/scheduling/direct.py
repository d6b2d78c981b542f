"""The plain scheduler: first come, first served, every request by itself."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from functools import reduce
from operator import or_
from queue import SimpleQueue

from repoagent.errors import RepoAgentError
from repoagent.serving.instances.backend import Capability
from repoagent.serving.instances.instance import Instance, close_all, join_all
from repoagent.serving.measuring.statistics import ModelStatistics
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import answer_error, submit_and_wait
from repoagent.serving.scheduling.scheduler import PooledScheduler
from repoagent.serving.scheduling.steps import Clock, Deadlines, Entry, Refusal, Watcher, start_workers


class RequestQueue:
    """Entries, first come, first served. A worker sleeps until it is called, so that entries can come without a call.

    An entry waits until a thread claims it, which then executes or answers it; its place in the queue may outlast that.
    """

    def __init__(self, attended: Callable[[], bool] | None = None) -> None:
        self.attended = attended
        """Whether all entries are going to be taken by event loops: then calls mean nothing."""
        self.waiting: dict[Entry, Entry] = {}
        """What was not claimed yet."""
        self._deadlines: Deadlines[Entry] = Deadlines(self.waiting.__contains__)
        self._entries: deque[Entry] = deque()
        self._calls: SimpleQueue[bool] = SimpleQueue()

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, entry: Entry) -> None:
        """Add ``entry``; a worker is called unless an event loop is going to take it."""
        self._entries.append(entry)
        if self.attended is None or not self.attended():
            self._calls.put(True)

    def put_back(self, entry: Entry) -> None:
        """Have an entry that was taken be the first one again. Nothing is called for it."""
        self._entries.appendleft(entry)

    def claim(self, entry: Entry) -> bool:
        """Take over ``entry``; False if another thread has done so."""
        return self.waiting.pop(entry, None) is not None

    def set_deadline(self, entry: Entry) -> None:
        """Take note of the timeout that the request asks for."""
        deadline = entry.request.arrival_ns + entry.request.asked.timeout_us * 1000
        self._deadlines.add(deadline, entry, len(self.waiting))

    @property
    def deadline_ns(self) -> int | None:
        return self._deadlines.next_ns

    def expire(self, now_ns: int) -> list[Refusal]:
        return [Refusal.expired(entry.request) for entry in self._deadlines.over(now_ns) if self.claim(entry)]

    def sweep(self) -> list[Refusal]:
        cancelled = [entry for entry in list(self.waiting) if entry.request.cancelled]
        return [Refusal.cancelled(entry.request) for entry in cancelled if self.claim(entry)]

    def call(self) -> None:
        """Wake a worker up: there is something for it."""
        self._calls.put(True)

    def dismiss(self) -> None:
        """Have one :meth:`wait` return None."""
        self._calls.put(False)

    @property
    def first(self) -> Entry | None:
        """What :meth:`take` would return."""
        try:
            return self._entries[0]
        except IndexError:
            return None

    def take(self) -> Entry | None:
        try:
            return self._entries.popleft()
        except IndexError:
            return None

    def wait(self) -> Entry | None:
        """Wait to be called, and take the first entry; None to end."""
        while self._calls.get():
            entry = None if self.attended is not None and self.attended() else self.take()
            if entry is not None:
                if self._entries and self._calls.empty():
                    self._calls.put(True)  # One call may have stood for all of them.
                return entry
        return None


class DirectScheduler(PooledScheduler):
    """First come, first served; every request is executed by itself.

    A caller that waits has an instance meanwhile, unless instances answer later or wait for the rate limiter. An
    instance that answers through senders is free for others as soon as its ``execute`` has returned.
    """

    def __init__(
        self,
        model_name: str,
        instances: Sequence[Instance],
        statistics: ModelStatistics,
        clock: Clock | None = None,
    ) -> None:
        super().__init__(model_name, instances, statistics, clock or Clock())
        can = reduce(or_, (instance.capabilities for instance in instances), Capability.NONE)
        self._returns_answers = not can & (Capability.USES_SENDERS | Capability.RATE_LIMITED)
        self._callers_execute = not can & (Capability.ANSWERS_LATER | Capability.RATE_LIMITED)
        self._queue = RequestQueue()
        name = f"repoagent-{model_name}-timeouts"
        self._watcher = Watcher(name, self._lock, self.clock, self._queue, self.refuser)
        self._workers: list[threading.Thread] = []

    @property
    def waiting(self) -> int:
        return len(self._queue.waiting)

    def infer(self, request: InferRequest) -> InferResponse:
        if self._returns_answers:
            return self._call(self._take(request), request)
        begin = self._execute_here if self._callers_execute else self.submit
        return submit_and_wait(begin, request, self._model_name)

    def _execute_here(self, request: InferRequest) -> None:
        try:
            instance = self._take(request)
        except RepoAgentError as error:
            answer_error(request, error)
        else:
            self._execute_on(instance, request)

    def submit(self, request: InferRequest) -> None:
        if self._queue.waiting or not self._execute_now(request):
            self._enqueue(request)

    def _execute_now(self, request: InferRequest) -> bool:
        """Execute ``request`` on this thread if that is sooner over than waking a worker; False if it was not done."""
        instance = self._pool.take_idle() if self._executes_submitted(request) else None
        if instance is None:
            return False
        try:
            self._execute(instance, request)
            return True
        finally:
            self._pool.give(instance)

    def _enqueue(self, request: InferRequest) -> None:
        request.on_cancel = self._watcher.on_cancel
        self._let_wait(self._entry(request))

    def _entry(self, request: InferRequest) -> Entry:
        return Entry(request, 1, self.clock.now_ns())

    def _let_wait(self, entry: Entry) -> None:
        request = entry.request
        self._queue.waiting[entry] = entry
        if request.asked.timeout_us:
            with self._lock:
                self._queue.set_deadline(entry)
                self._watcher.notice()
        self._queue.put(entry)
        if not self._workers:
            self._start_workers()
        if request.cancelled:
            self._watcher.on_cancel()
        if self._closed:  # It was closed meanwhile, and nothing will look again.
            self._answer_left_over()

    # -- the workers -----------------------------------------------------------------------------------------------

    def _start_workers(self) -> None:
        # Only when first needed: an embedder that waits for its answers never has a thread per model.
        with self._lock:
            if not self._workers and not self._closed:
                self._add_workers()

    def _add_workers(self) -> None:
        # A worker more than instances does no harm: it waits for one.
        start_workers(self._workers, len(self.instances), self._work, f"repoagent-{self._model_name}")

    def _work(self) -> None:
        while (entry := self._queue.wait()) is not None:
            if entry in self._queue.waiting:
                instance = self._pool.take()
                if instance is None:
                    return  # It is closed, which answers what waits.
                try:
                    self._drain(instance, entry)
                finally:
                    self._let_go(instance)
            del entry  # While this thread waits, it keeps no request's tensors in memory.

    def _drain(self, instance: Instance, entry: Entry) -> None:
        """Execute ``entry`` and this instance's share of what waits behind it."""
        share = len(self._queue) // len(self.instances)
        self._execute_waiting(instance, entry)
        del entry  # It may wait here.
        while len(self._queue) and self._pool.retake(instance) if self._pool.for_one else share:
            following = self._queue.take()
            if following is None:
                return
            self._execute_waiting(instance, following)
            share -= 1

    def _let_go(self, instance: Instance) -> None:
        """A worker has done its share."""
        self._pool.give(instance)

    def _execute_waiting(self, instance: Instance, entry: Entry) -> None:
        if self._queue.claim(entry):
            self._execute(instance, entry.request)

    def _execute(self, instance: Instance, request: InferRequest) -> None:
        if request.cancelled or self._closed or self._expired(request):
            self.turn_away(request)
        else:
            instance.execute((request,))

    def _expired(self, request: InferRequest) -> bool:
        return (
            bool(request.asked.timeout_us)
            and self.clock.now_ns() - request.arrival_ns > request.asked.timeout_us * 1000
        )

    def _follow_instances(self) -> None:
        if self._workers:
            self._add_workers()

    def close(self) -> None:
        with self._lock:
            self._closed = True
        self._watcher.stop()
        self._pool.close()
        for _ in self._workers:
            self._queue.dismiss()
        join_all(self._workers)
        self._answer_left_over()
        close_all(self.instances)

    def _answer_left_over(self) -> None:
        for entry in list(self._queue.waiting):
            if self._queue.claim(entry):
                self.turn_away(entry.request)
