"""Instances that are given several requests at once and execute them one after the other."""

import time
from collections.abc import Callable, Sequence

from repoagent.errors import RepoAgentError
from repoagent.serving.instances.backend import QueueingInstance
from repoagent.serving.instances.base import NativeInstance, as_repoagent_error, batch_size
from repoagent.serving.instances.loop_reader import LoopReader
from repoagent.serving.instances.version_context import VersionContext
from repoagent.serving.measuring.statistics import ExecutionTimes
from repoagent.serving.requests.request import InferRequest
from repoagent.serving.requests.senders import RecordingSender, answer_error, reshape

__all__ = ["GivenBack", "QueueingNativeInstance"]

GivenBack = Callable[[Sequence[InferRequest]], None]
"""Takes requests that were not executed, as they had come. It may be called on any thread."""


class QueueingNativeInstance(NativeInstance):
    """A native instance over a backend's :class:`QueueingInstance`. Statistics count every execution by itself."""

    def __init__(self, context: VersionContext, inner: QueueingInstance) -> None:
        super().__init__(context, inner)
        self._queue = inner

    @property
    def ahead(self) -> int:
        """How many requests :meth:`execute_each` should get at the moment."""
        return self._queue.ahead

    @property
    def ready_for_loop(self) -> bool:
        """Whether :meth:`begin_each` is worth calling at the moment."""
        return self._queue.ready_for_loop

    def execute_each(self, requests: Sequence[InferRequest], give_back: GivenBack) -> None:
        """Answer every request through its sender, each executed by itself, or give it back. Never raises."""
        given = _Givens(self, requests, give_back)
        try:
            self._queue.execute_each(given.requests, given.executed, given.returned)
        except Exception as error:
            given.fail(error)

    def begin_each(
        self, requests: Sequence[InferRequest], give_back: GivenBack, ended: Callable[[], None], reader: LoopReader
    ) -> None:
        """The same without waiting, on the thread of ``reader``. Never raises.

        ``ended`` is called, on any thread, once the instance is free again; answers may come after that.
        """
        given = _Givens(self, requests, give_back)

        def over(error: Exception | None) -> None:
            if error is not None:
                given.fail(error)
            ended()

        try:
            begun = bool(given.requests) and self._queue.begin_each(
                given.requests, given.executed, given.returned, over, reader
            )
        except Exception as error:
            over(error)
            return
        if not begun:
            given.returned(range(len(given.requests)))
            ended()


class _Givens:
    """Requests that were handed to an instance together; a part of :class:`QueueingNativeInstance`."""

    def __init__(
        self, instance: QueueingNativeInstance, requests: Sequence[InferRequest], give_back: GivenBack
    ) -> None:
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

    def __init__(self, instance: QueueingNativeInstance, request: InferRequest, now_ns: int) -> None:
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
        """The request as it came."""
        self._returned = True
        self._recorder.withdraw()
        self.request.inputs = self._inputs
        return self.request
