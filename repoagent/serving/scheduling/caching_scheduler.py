"""A scheduler that asks the response cache first."""

from repoagent.serving.instances.version_context import VersionContext
from repoagent.serving.requests.request import InferRequest, InferResponse
from repoagent.serving.requests.senders import LayerSender
from repoagent.serving.requests.tensor import Tensor
from repoagent.serving.scheduling.clock import Clock
from repoagent.serving.scheduling.forwarding import ForwardingScheduler
from repoagent.serving.scheduling.response_cache import CacheKey, ResponseCache, request_digest
from repoagent.serving.scheduling.scheduler import Scheduler

__all__ = ["CachingScheduler"]


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
        start = self._clock.now_ns()
        _own(request)
        key = (self._owner, request_digest(request))
        known = self._look_up(key, request, start)
        if known is not None:
            return known
        spent = self._clock.now_ns() - start
        response = self._inner.infer(request)
        self.keep(key, response, spent)
        return response

    def submit(self, request: InferRequest) -> None:
        start = self._clock.now_ns()
        _own(request)
        key = (self._owner, request_digest(request))
        known = self._look_up(key, request, start)
        if known is None:
            _KeepingSender(self, request, key, self._clock.now_ns() - start)
            self._inner.submit(request)
        else:
            request.send(known, True)

    def _look_up(self, key: CacheKey, request: InferRequest, start_ns: int) -> InferResponse | None:
        if request.cancelled:  # The scheduler behind knows what to say.
            return None
        known = self._cache.get(key, request, self._version)
        if known is not None:
            now = self._clock.now_ns()
            request.times = None
            self._statistics.record_cache_hit(request.arrival_ns or start_ns, now - start_ns, now)
        return known

    def keep(self, key: CacheKey, response: InferResponse, spent_ns: int) -> None:
        """Put an answer into the cache and count the miss; the look-up took ``spent_ns``."""
        start = self._clock.now_ns()
        self._cache.put(key, response)
        self._statistics.record_cache_miss(spent_ns + self._clock.now_ns() - start)

    def close(self) -> None:
        super().close()
        self._cache.forget(self._owner)


def _own(request: InferRequest) -> None:
    """Let no one change what the cache looks at: else a client could have it remember a wrong answer for others."""
    request.output_places = None
    if request.asked.volatile:
        request.inputs = {
            name: Tensor(tensor.data_type, tensor.array.copy()) for name, tensor in request.inputs.items()
        }
