"""How long the runs of a model take, and its latest requests: those for summaries and histograms, off by default.

The sums and counts of the statistics are cheaper and are always kept. All durations here are nanoseconds.
"""

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from repoagent.serving.measuring.custom_metrics import Metric, MetricKind

if TYPE_CHECKING:
    from repoagent.config import ModelConfig


_QUICK_NS: Final = 100_000
"""A run that takes less than this is over sooner than another thread is awake."""
_QUICK_DEBT_NS: Final = 5_000_000
"""How much longer than that runs may have taken together, lately: about one slice of another process's time."""
_LARGER: Final = 4
"""How many times larger than one that was quick an input may be that is expected to be quick."""
_MOST_DEBT_NS: Final = 1_000_000_000
_MOST_WAIT_NS: Final = 100_000_000
_UNKNOWN_NS: Final = 10_000_000
_FOR_EVER_NS: Final = 1 << 62


class RunTime:
    """How long the runs of one version of a model take, on whichever of its instances.

    The instances write it from their threads without a lock: a run that is lost now and then changes nothing.
    """

    __slots__ = ("_debt_ns", "quick", "quick_bytes", "usual_ns")

    def __init__(self, usual_ns: int = _UNKNOWN_NS) -> None:
        """``usual_ns`` is what is assumed before the first run."""
        self._debt_ns = _QUICK_DEBT_NS
        self.quick = False
        """Lately every request took less time than it takes to wake another thread up for it."""
        self.quick_bytes = 0
        """Up to so many bytes of inputs that holds: a few times as many as were quick. Beyond, it is unknown."""
        self.usual_ns = usual_ns
        """How long most runs take; large if that means nothing for the next one. Unlike :attr:`quick` it tolerates
        a slow run now and then."""

    def note(self, duration_ns: int, cpu_ns: int = 0, size: int = 0) -> None:
        """A run took ``duration_ns`` for inputs of ``size`` bytes; what a processor did for it meanwhile, if it is
        known, does not matter.

        What it took beyond the limit is a debt, which the next quick runs pay back. So a run that the machine
        interrupted now and then is forgiven, one that took a second is held against the model for ten thousand runs,
        and a model that is slow on average is never quick. No debt is longer than that: a model may change its ways.
        """
        debt = self._debt_ns + duration_ns - _QUICK_NS
        self._debt_ns = debt = 0 if debt < 0 else debt if debt < _MOST_DEBT_NS else _MOST_DEBT_NS
        self.quick = debt < _QUICK_DEBT_NS
        if duration_ns < _QUICK_NS and size * _LARGER > self.quick_bytes:
            self.quick_bytes = size * _LARGER
        # What is usual falls fast and rises slowly, so that it stays low as long as every tenth run is short.
        usual = self.usual_ns
        self.usual_ns = (usual + duration_ns) >> 1 if duration_ns < usual else min(duration_ns, usual + (usual >> 4))

    def note_computing(self, duration_ns: int, cpu_ns: int = 0, size: int = 0) -> None:
        """As :meth:`note`: in ``duration_ns`` a run only computed on its thread, for ``cpu_ns`` unless that is 0.

        The rest it waited for a processor or for the interpreter, which is not held against the model: a crowd of
        threads would make it look slow forever. Asking for the processor's time is slow, and not needed while the
        model is quick: a slow run is then held against it as far as it could have been a wait. Once it is not quick
        any more, only the processor's time counts.
        """
        if cpu_ns:
            self.note(cpu_ns, 0, size)
        elif self.quick:
            self.note(duration_ns if duration_ns < _MOST_WAIT_NS else _MOST_WAIT_NS, 0, size)


def common_run_time(paces: Iterable[RunTime]) -> RunTime:
    """The run_time that all instances of a model share; if they do not share one, a run_time that promises nothing."""
    different = set(paces)
    return different.pop() if len(different) == 1 else unpredictable()


def unpredictable() -> RunTime:
    """The run_time of what may take any time: nothing should be noted in it."""
    return RunTime(_FOR_EVER_NS)


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
