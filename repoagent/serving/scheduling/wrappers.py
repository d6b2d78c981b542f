"""Answers in the order of the requests, whatever the order in which they are ready."""

import threading
from collections import deque
from collections.abc import Sequence

from repoagent.serving.instances.instance import Instance, VersionContext
from repoagent.serving.requests.request import InferRequest, InferResponse, ResponseSender
from repoagent.serving.requests.senders import LayerSender
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.response_cache import CacheKey, ResponseCache, request_digest
from repoagent.serving.scheduling.scheduler import Scheduler
from repoagent.serving.scheduling.steps import Clock


class ForwardingScheduler(Scheduler):
    """Hands on what does not concern requests."""

    def __init__(self, model_name: str, inner: Scheduler) -> None:
        super().__init__(model_name)
        self._inner = inner

    @property
    def waiting(self) -> int:
        return self._inner.waiting

    @property
    def resizable(self) -> bool:
        return self._inner.resizable

    def resize(self, added: Sequence[Instance], removed: Sequence[Instance]) -> None:
        self._inner.resize(added, removed)

    def retire(self) -> None:
        self._inner.retire()

    def close(self) -> None:
        self._inner.close()


class _HeldSender:
    """The sender of one request in the row: it keeps the answers until those before it are out."""

    def __init__(self, keeper: "OrderKeeper", request: InferRequest) -> None:
        self._keeper = keeper
        self._request = request
        self.inner = request.redirect(self)
        self.ready: deque[tuple[InferResponse | None, bool]] = deque()

    def send(self, response: InferResponse | None, final: bool) -> None:
        if final:
            self._request.redirect(self.inner)
        self._keeper.deliver(self, response, final)


class OrderKeeper:
    """The row of requests whose answers are still to come."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._row: deque[_HeldSender] = deque()
        self._delivering = False

    def enroll(self, request: InferRequest) -> None:
        """Put ``request`` at the end of the row: its answers go out after those to all before it."""
        with self._lock:
            self._row.append(_HeldSender(self, request))

    def deliver(self, place: _HeldSender, response: InferResponse | None, final: bool) -> None:
        """Keep an answer, and send whatever can be sent now unless another thread is doing that."""
        with self._lock:
            place.ready.append((response, final))
            if self._delivering:
                return
            self._delivering = True
        while (item := self._next()) is not None:
            inner, response, final = item
            inner.send(response, final)

    def _next(self) -> tuple[ResponseSender, InferResponse | None, bool] | None:
        with self._lock:
            first = self._row[0] if self._row else None
            if first is None or not first.ready:
                self._delivering = False
                return None
            response, final = first.ready.popleft()
            if final:
                self._row.popleft()
            return first.inner, response, final


class OrderedScheduler(ForwardingScheduler):
    """Another scheduler, whose answers go out in the order in which the requests came in."""

    def __init__(self, model_name: str, inner: Scheduler) -> None:
        super().__init__(model_name, inner)
        self._keeper = OrderKeeper()

    def executes_here(self, patient: bool) -> bool:
        return False

    def submit(self, request: InferRequest) -> None:
        self._keeper.enroll(request)
        self._inner.submit(request)


class _KeepingSender(LayerSender):
    """Puts the answer into the cache before it goes on."""

    __slots__ = ("_key", "_owner", "_spent_ns")

    def __init__(self, owner: "CachingScheduler", request: InferRequest, key: CacheKey, spent_ns: int) -> None:
        super().__init__(request)
        self._owner = owner
        self._key = key
        self._spent_ns = spent_ns

    def send(self, response: InferResponse | None, final: bool) -> None:
        if response is not None and response.error is None:
            self._owner.keep(self._key, response, self._spent_ns)
        super().send(response, final)


class CachingScheduler(ForwardingScheduler):
    """Another scheduler, behind a cache. For models with one response to a request, which do not keep state."""

    def __init__(self, version: VersionContext, inner: Scheduler, cache: ResponseCache, clock: Clock) -> None:
        super().__init__(version.name, inner)
        self._version = str(version.version)
        self._cache = cache
        self._owner = cache.new_owner()
        self._statistics = version.statistics
        self._clock = clock

    def executes_here(self, patient: bool) -> bool:
        return self._inner.executes_here(patient)

    def infer(self, request: InferRequest) -> InferResponse:
        known, key, spent_ns = self._look_up(request)
        if known is not None:
            return known
        response = self._inner.infer(request)
        self.keep(key, response, spent_ns)
        return response

    def submit(self, request: InferRequest) -> None:
        known, key, spent_ns = self._look_up(request)
        if known is None:
            _KeepingSender(self, request, key, spent_ns)
            self._inner.submit(request)
        else:
            request.send(known, True)

    def _look_up(self, request: InferRequest) -> tuple[InferResponse | None, CacheKey, int]:
        """The answer, if it is known, under which key it is kept, and how long looking for it took."""
        start_ns = self._clock.now_ns()
        _own(request)
        key = (self._owner, request_digest(request))
        # One that was cancelled the scheduler behind refuses.
        known = None if request.cancelled else self._cache.get(key, request, self._version)
        now_ns = self._clock.now_ns()
        if known is not None:
            request.times = None
            self._statistics.record_cache_hit(request.arrival_ns or start_ns, now_ns - start_ns, now_ns)
        return known, key, now_ns - start_ns

    def keep(self, key: CacheKey, response: InferResponse, spent_ns: int) -> None:
        """Put an answer into the cache and count the miss; the look-up took ``spent_ns``."""
        start = self._clock.now_ns()
        self._cache.put(key, response)
        self._statistics.record_cache_miss(spent_ns + self._clock.now_ns() - start)

    def close(self) -> None:
        super().close()
        self._cache.forget(self._owner)


def _own(request: InferRequest) -> None:
    """Make a copy of what the cache looks at: a client could change it, and have a wrong answer kept for others."""
    request.output_places = None
    if request.asked.volatile:
        request.inputs = {
            name: Tensor(tensor.data_type, tensor.array.copy()) for name, tensor in request.inputs.items()
        }
