"""How long the latest requests of one version of a model took, for summaries and histograms; off by default.

The sums and counts of the statistics are cheaper and are always kept. All durations here are nanoseconds.
"""

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from repoagent.serving.measuring.custom_metrics import Metric, MetricKind

if TYPE_CHECKING:
    from repoagent.config import ModelConfig

FIRST_RESPONSE: Final = "nv_inference_first_response_histogram_ms"
"""The name under which a configuration (``model_metrics``) gives the histogram other buckets."""
_BUCKETS: Final = (100.0, 500.0, 2000.0, 5000.0)

PARTS: Final = ("request", "queue", "compute_input", "compute_infer", "compute_output")
"""What is kept of each request. The compute parts are not kept of one that the response cache answered."""

LOOKUPS: Final = ("cache_hit", "cache_miss")
"""What is kept of each look-up in the response cache."""

_WINDOW_NS: Final = 60_000_000_000
_LIMIT: Final = 8192
"""How many requests are kept at most: enough for the 0.999 quantile, and less than a MiB."""

_NOTHING: Final[Mapping[str, Sequence[int]]] = MappingProxyType(dict.fromkeys((*PARTS, *LOOKUPS), ()))


@dataclass(frozen=True, slots=True)
class LatencyOptions:
    """What is kept of every model."""

    summaries: bool = False
    histograms: bool = False

    def start(self, config: "ModelConfig") -> "Latencies | None":
        """What to keep for a version with this configuration; None for nothing."""
        decoupled = config.model_transaction_policy.decoupled
        histogram = Metric(MetricKind.HISTOGRAM, {}, _buckets(config)) if self.histograms else None
        if histogram is None and not self.summaries:
            return None
        return Latencies(histogram, summaries=self.summaries, several_responses=decoupled)


@dataclass(frozen=True, slots=True)
class Recent:
    """What was kept at one moment."""

    parts: Mapping[str, Sequence[int]] = field(default_factory=lambda: _NOTHING)
    """Durations of the requests of the last minute, by the names of :data:`PARTS` and :data:`LOOKUPS`; unsorted."""
    summaries: bool = False
    first_response: Metric | None = None
    """A histogram in milliseconds; without labels."""


class Latencies:
    """Of one version. Every method may be called from any thread: appending to a bounded deque is atomic."""

    def __init__(
        self,
        first_response: Metric | None = None,
        *,
        summaries: bool,
        several_responses: bool = False,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        """``several_responses``: the first one does not come with the success; see :meth:`add_first_response`."""
        self._first_response = first_response
        self._summaries = summaries
        self._clock = clock
        self._answers_once = first_response is not None and not several_responses
        self._requests: deque[tuple[int, ...]] = deque(maxlen=_LIMIT)
        self._lookups: dict[str, deque[tuple[int, int]]] = {name: deque(maxlen=_LIMIT) for name in LOOKUPS}

    def add(self, *parts: int) -> None:
        """A request has succeeded; ``parts`` are the first ones, or all, of :data:`PARTS`."""
        if self._summaries:
            self._requests.append((self._clock(), *parts))
        if self._answers_once:
            self.add_first_response(parts[0])

    def add_lookup(self, outcome: str, duration_ns: int) -> None:
        """The response cache was asked; ``outcome`` is one of :data:`LOOKUPS`."""
        if self._summaries:
            self._lookups[outcome].append((self._clock(), duration_ns))

    def add_first_response(self, duration_ns: int) -> None:
        """A decoupled model has sent its first response."""
        if self._first_response is not None:
            self._first_response.observe(duration_ns / 1e6)

    def recent(self) -> Recent:
        """What is there now."""
        since = self._clock() - _WINDOW_NS
        requests = [request for request in self._requests.copy() if request[0] >= since]
        parts = {
            name: [request[place] for request in requests if place < len(request)]
            for place, name in enumerate(PARTS, start=1)
        }
        for name, lookups in self._lookups.items():
            parts[name] = [duration for moment, duration in lookups.copy() if moment >= since]
        return Recent(parts, self._summaries, self._first_response)


def _buckets(config: "ModelConfig") -> Sequence[float]:
    """The upper bounds of the histogram, as the configuration of the model has them or the default."""
    for control in config.model_metrics.metric_control:
        if control.metric_identifier.family == FIRST_RESPONSE and control.histogram_options.buckets:
            return tuple(control.histogram_options.buckets)
    return _BUCKETS
