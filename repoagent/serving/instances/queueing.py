"""Instances that are given several requests at once and execute them one after the other."""

import time
from collections.abc import Callable, Sequence

from repoagent.errors import RepoAgentError
from repoagent.serving.instances.backend import QueueingInstance
from repoagent.serving.instances.base import NativeInstance, as_repoagent_error, batch_size
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

    def execute_each(self, requests: Sequence[InferRequest], give_back: GivenBack) -> None:
        """Answer every request through its sender, each executed by itself, or give it back. Never raises."""
        now = time.monotonic_ns()
        given = [prepared for request in requests if (prepared := self._prepared(request, now)) is not None]

        def executed(place: int, begin_ns: int, end_ns: int) -> None:
            given[place].executed(begin_ns, end_ns)

        def returned(places: Sequence[int]) -> None:
            give_back([given[place].restored() for place in places])

        try:
            self._queue.execute_each([one.request for one in given], executed, returned)
        except Exception as error:
            failure = as_repoagent_error(error, self._model_name)
            for one in given:
                if not one.over:
                    answer_error(one.request, failure, self._version)

    def _prepared(self, request: InferRequest, now_ns: int) -> "_Given | None":
        """``request`` in the form that the model gets; None if it has no such form, and is answered."""
        given = _Given(self, request, now_ns)
        if self._reshaper is not None:
            try:
                reshape(request, self._reshaper)
            except RepoAgentError as error:
                answer_error(request, error, self._version)
                return None
        return given


class _Given:
    """A request on its way to an instance; a part of :class:`QueueingNativeInstance`."""

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
