"""Instances over a backend's own :class:`BackendInstance`, which answers through senders."""

import logging
import threading
import time
from collections.abc import Callable, Sequence

from repoagent.errors import CancelledError, RepoAgentError
from repoagent.serving.instances.backend import BackendInstance, Capability
from repoagent.serving.instances.instance import GivenBack, Instance, VersionContext, as_repoagent_error, batch_size
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.measuring.latencies import unpredictable
from repoagent.serving.measuring.statistics import ExecutionTimes, ModelStatistics
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import CollectingSender, RecordingSender, answer_error, reshape, submit_and_wait
from repoagent.serving.requests.tensor import Reshaper

logger = logging.getLogger(__name__)


class NativeInstance(Instance):
    """An instance over a backend's own :class:`BackendInstance`."""

    def __init__(self, context: VersionContext, inner: BackendInstance) -> None:
        self._model_name = context.name
        self._version = str(context.version)
        self._inner = inner
        self._statistics = context.statistics
        self._batching = context.batching
        self._decoupled = context.decoupled
        self._reshaper = Reshaper.of(context.config)
        self.capabilities = inner.capabilities | Capability.USES_SENDERS
        self.run_time = unpredictable()  # It may do anything, also wait for another request.

    def call(self, request: InferRequest) -> InferResponse:
        return submit_and_wait(lambda one: self.execute((one,)), request, self._model_name)

    def execute(self, requests: Sequence[InferRequest]) -> None:
        execution = _Execution(self._statistics)
        senders: dict[InferRequest, RecordingSender] = {}
        for request in requests:
            size = batch_size(request) if self._batching else 1
            execution.size += size
            if not request.placeholder:
                senders[request] = RecordingSender(
                    request,
                    self._statistics,
                    batch_size=size,
                    started_ns=execution.started_ns,
                    decoupled=self._decoupled,
                    on_end=execution.count,
                )
        try:
            if self._reshaper is not None:
                for request in dict.fromkeys(requests):  # Free slots of a batch have one request together.
                    reshape(request, self._reshaper)
            self._inner.execute(requests)
        except Exception as error:
            failure = as_repoagent_error(error, self._model_name)
            for request, sender in senders.items():
                if not sender.ended:
                    answer_error(request, failure, self._version)
        if len(requests) > 1 or not execution.counted:
            execution.count(time.monotonic_ns(), over=True)

    @property
    def ahead(self) -> int:
        return self._inner.ahead

    @property
    def ready_for_loop(self) -> bool:
        return self._inner.ready_for_loop

    def execute_each(self, requests: Sequence[InferRequest], give_back: GivenBack) -> None:
        given = _Givens(self, requests, give_back)
        try:
            self._inner.execute_each(given.requests, given.executed, given.returned)
        except Exception as error:
            given.fail(error)

    def begin_each(
        self, requests: Sequence[InferRequest], give_back: GivenBack, ended: Callable[[], None], reader: LoopReader
    ) -> None:
        given = _Givens(self, requests, give_back)

        def over(error: Exception | None) -> None:
            if error is not None:
                given.fail(error)
            ended()

        try:
            begun = bool(given.requests) and self._inner.begin_each(
                given.requests, given.executed, given.returned, over, reader
            )
        except Exception as error:
            over(error)
            return
        if not begun:
            given.returned(range(len(given.requests)))
            ended()

    def rehearse(self, request: InferRequest) -> None:
        collector = CollectingSender()
        request.redirect(collector)
        if self._reshaper is not None:
            reshape(request, self._reshaper)
        self._inner.execute((request,))
        try:
            if self._decoupled:
                collector.finish()
            else:
                collector.result(self._model_name)
        except CancelledError:
            logger.info("the warm-up of model '%s' was cancelled", self._model_name)

    def close(self) -> None:
        self._inner.close()


class _Execution:
    """Counts one call of an instance before the first final answer goes out: a client that has it sees it counted."""

    def __init__(self, statistics: ModelStatistics) -> None:
        self.size = 0
        self.started_ns = time.monotonic_ns()
        self._statistics = statistics
        self._counted_ns = 0
        """Up to when its time is counted."""
        self._lock = threading.Lock()

        self.counted = False

    def count(self, now_ns: int, *, over: bool = False) -> None:
        """Count it, unless it is counted; if it is ``over``, add the time that it took since."""
        with self._lock:
            first, self.counted = not self.counted, True
            if first or over:
                begin = self._counted_ns or self.started_ns
                times = ExecutionTimes(begin, begin, now_ns, now_ns)
                self._statistics.record_execution(self.size, times, int(first))
                self._counted_ns = now_ns


class _Givens:
    """Requests that were handed to an instance together; a part of :class:`NativeInstance`."""

    def __init__(self, instance: NativeInstance, requests: Sequence[InferRequest], give_back: GivenBack) -> None:
        self._instance = instance
        self._give_back = give_back
        now = time.monotonic_ns()
        self._given = [given for request in requests if (given := self._prepared(request, now)) is not None]
        self.requests = [given.request for given in self._given]

    def _prepared(self, request: InferRequest, now_ns: int) -> "_Given | None":
        """``request`` in the form that the model gets; None if it has no such form, and is answered."""
        instance = self._instance
        given = _Given(instance, request, now_ns)
        if instance._reshaper is not None:
            try:
                reshape(request, instance._reshaper)
            except RepoAgentError as error:
                answer_error(request, error, instance._version)
                return None
        return given

    def executed(self, place: int, begin_ns: int, end_ns: int) -> None:
        self._given[place].executed(begin_ns, end_ns)

    def returned(self, places: Sequence[int]) -> None:
        if places:
            self._give_back([self._given[place].restored() for place in places])

    def fail(self, error: Exception) -> None:
        """Answer all that nothing has become of."""
        failure = as_repoagent_error(error, self._instance._model_name)
        for one in self._given:
            if not one.over:
                answer_error(one.request, failure, self._instance._version)


class _Given:
    """One of them."""

    __slots__ = ("_given_ns", "_inputs", "_recorder", "_returned", "_size", "_statistics", "request")

    def __init__(self, instance: NativeInstance, request: InferRequest, now_ns: int) -> None:
        self.request = request
        self._given_ns = now_ns
        self._inputs = request.inputs
        self._returned = False
        self._size = batch_size(request) if instance._batching else 1
        self._statistics = instance._statistics
        self._recorder = RecordingSender(
            request, self._statistics, batch_size=self._size, started_ns=now_ns, decoupled=instance._decoupled
        )

    @property
    def over(self) -> bool:
        """Whether it was answered or given back."""
        return self._returned or self._recorder.ended

    def executed(self, begin_ns: int, end_ns: int) -> None:
        """Count its execution, which was then; what is reported of another time is not believed."""
        now = time.monotonic_ns()
        begin = min(max(begin_ns, self._given_ns), now)
        end = min(max(end_ns, begin), now)
        self._recorder.started_ns = begin
        self._statistics.record_execution(self._size, ExecutionTimes(begin, begin, end, end))

    def restored(self) -> InferRequest:
        self._returned = True
        self._recorder.withdraw()
        self.request.inputs = self._inputs
        return self.request
