"""The page that Prometheus fetches: read from the counters at the moment it is asked for."""

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from repoagent.errors import InvalidArgumentError
from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent.serving.measuring.latencies import FIRST_RESPONSE, LatencyOptions
from repoagent.serving.measuring.prometheus import Family, Part, Sample, render
from repoagent.serving.measuring.statistics import StatisticsSnapshot
from repoagent.serving.queries import ModelMetrics

_BOOLEANS: Final = {"true": True, "on": True, "1": True, "false": False, "off": False, "0": False}
_FLAGS: Final = ("counter_latencies", "summary_latencies", "histogram_latencies")


@dataclass(frozen=True, slots=True)
class MetricsSettings:
    """The counters are shown unless they are switched off; summaries and histograms cost a little, and are off."""

    counter_latencies: bool = True
    summary_latencies: bool = False
    histogram_latencies: bool = False
    summary_quantiles: tuple[float, ...] = (0.5, 0.9, 0.95, 0.99, 0.999)

    @property
    def kept(self) -> LatencyOptions:
        """What a serving core has to keep for it."""
        return LatencyOptions(summaries=self.summary_latencies, histograms=self.histogram_latencies)


def read_metrics_settings(settings: Mapping[str, str]) -> MetricsSettings:
    """The settings by their names in Triton, each with the text that gives its value.

    Raises:
        InvalidArgumentError: a name or a value is not known.
    """
    values: dict[str, object] = {}
    for name, text in settings.items():
        if name == "summary_quantiles":
            values[name] = tuple(_read_quantile(pair) for pair in text.split(","))
        elif name in _FLAGS:
            values[name] = _boolean(name, text)
        else:
            raise InvalidArgumentError(f"unknown setting '{name}'; there are {', '.join(_FLAGS)}, summary_quantiles")
    return MetricsSettings(**values)  # type: ignore[arg-type]


def _boolean(name: str, text: str) -> bool:
    if text.lower() not in _BOOLEANS:
        raise InvalidArgumentError(f"{name}: invalid value for bool option: {text}")
    return _BOOLEANS[text.lower()]


def _read_quantile(pair: str) -> float:
    """``0.99:0.001``: the quantile and the error that is allowed; ours are exact."""
    quantile, colon, error = pair.partition(":")
    try:
        value, allowed = float(quantile), float(error)
    except ValueError:
        colon, value, allowed = "", 0.0, 0.0
    if not (colon and 0 <= value <= 1 and allowed >= 0):
        raise InvalidArgumentError(
            f"summary_quantiles must be pairs <quantile>:<error> with commas between, such as 0.5:0.05,0.99:0.001, "
            f"not '{pair}'"
        )
    return value


_Read = Callable[[StatisticsSnapshot], int]

_COUNTERS: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("request_success", "Number of successful inference requests, all batch sizes", lambda s: s.success),
    ("count", "Number of inferences performed (does not include cached requests)", lambda s: s.inference_count),
    (
        "exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda s: s.execution_count,
    ),
)

_DURATIONS: Final[tuple[tuple[str, str, _Read], ...]] = (
    (
        "request",
        "inference request duration in microseconds (includes cached requests)",
        lambda s: s.request_ns,
    ),
    ("queue", "inference queuing duration in microseconds (includes cached requests)", lambda s: s.queue_ns),
    (
        "compute_input",
        "compute input duration in microseconds (does not include cached requests)",
        lambda s: s.compute_input_ns,
    ),
    (
        "compute_infer",
        "compute inference duration in microseconds (does not include cached requests)",
        lambda s: s.compute_infer_ns,
    ),
    (
        "compute_output",
        "inference compute output duration in microseconds (does not include cached requests)",
        lambda s: s.compute_output_ns,
    ),
)

_CACHE: Final[tuple[tuple[str, str, _Read], ...]] = (
    ("num_hits_per_model", "Number of cache hits per model", lambda s: s.cache_hits),
    ("num_misses_per_model", "Number of cache misses per model", lambda s: s.cache_misses),
    (
        "hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda s: s.cache_hit_ns // 1000,
    ),
    (
        "miss_duration_per_model",
        "Total cache miss duration per model, in microseconds",
        lambda s: s.cache_miss_ns // 1000,
    ),
)


def inference_families(
    models: Sequence[ModelMetrics],
    settings: MetricsSettings = MetricsSettings(),
) -> Iterable[Family]:
    """Names, labels and help texts as Triton has them; ``settings`` select what is shown of latencies."""
    durations = settings.counter_latencies
    for name, text, read in _COUNTERS:
        yield Family(f"nv_inference_{name}", "counter", text, [(_labels(m), read(m.statistics)) for m in models])
    yield Family(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        _failures(models),
    )
    for name, text, read in _DURATIONS if durations else ():
        samples: list[Sample] = [(_labels(m), read(m.statistics) // 1000) for m in models]
        yield Family(f"nv_inference_{name}_duration_us", "counter", f"Cumulative {text}", samples)
    yield Family(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        [(_labels(m), m.waiting) for m in models],
    )
    cached = [m for m in models if m.cached]
    for name, text, read in _CACHE if cached else ():
        if durations or "duration" not in name:
            yield Family(f"nv_cache_{name}", "counter", text, [(_labels(m), read(m.statistics)) for m in cached])
    yield from latency_families(models, settings.summary_quantiles)


def _labels(model: ModelMetrics) -> list[tuple[str, str]]:
    return [("model", model.name), *_namespace(model), ("version", model.version), *_tags(model)]


def _tags(model: ModelMetrics) -> list[tuple[str, str]]:
    """The labels that the configuration of the model adds, marked as Triton marks them."""
    return [(f"_{name}", value) for name, value in sorted(model.tags.items())]


def _namespace(model: ModelMetrics) -> list[tuple[str, str]]:
    return [("namespace", model.namespace)] if model.namespace else []


def _failures(models: Sequence[ModelMetrics]) -> list[Sample]:
    return [
        ([("model", m.name), *_namespace(m), ("reason", reason), ("version", m.version), *_tags(m)], count)
        for m in models
        for reason, count in m.statistics.failures.items()
    ]


def _executed(statistics: StatisticsSnapshot) -> int:
    return statistics.success - statistics.cache_hits


_SUMMARIES: Final[tuple[tuple[str, str, _Read, _Read], ...]] = (
    *(
        (name, text, read, _executed if name.startswith("compute") else lambda s: s.success)
        for name, text, read in _DURATIONS
    ),
    ("cache_hit", "cache hit duration in microseconds", lambda s: s.cache_hit_ns, lambda s: s.cache_hits),
    ("cache_miss", "cache miss duration in microseconds", lambda s: s.cache_miss_ns, lambda s: s.cache_misses),
)
"""What is kept of the latest requests, the text of its summary, and the sum and the number of all."""


def latency_families(models: Sequence[ModelMetrics], quantiles: Sequence[float]) -> Iterable[Family]:
    """The summaries and histograms of the models that keep what they are made of."""
    kept = [(model, model.statistics, recent) for model in models if (recent := model.statistics.recent) is not None]
    for name, text, total_ns, count in _SUMMARIES:
        parts: list[Part] = []
        for model, statistics, recent in kept:
            if recent.summaries and (model.cached or not name.startswith("cache")):
                values, labels = sorted(recent.parts[name]), _labels(model)
                parts += [("", [*labels, ("quantile", f"{one:g}")], _quantile(values, one)) for one in quantiles]
                parts += [("_sum", labels, total_ns(statistics) // 1000), ("_count", labels, count(statistics))]
        of = name if name.startswith("cache") else f"inference_{name}"
        yield Family(f"nv_{of}_summary_us", "summary", f"Summary of {text}", parts=parts)
    text = "Duration from request to first response in milliseconds"
    histograms = [
        part for model, _, recent in kept if (it := recent.first_response) for part in it.parts(_labels(model))
    ]
    yield Family(FIRST_RESPONSE, "histogram", text, parts=histograms)


def _quantile(values: Sequence[int], quantile: float) -> float:
    """The least of the sorted ``values`` that the share ``quantile`` of them is not above, in microseconds."""
    if not values:
        return math.nan
    place = math.ceil(quantile * len(values)) - 1
    return values[max(place, 0)] // 1000


class Machine:
    """Reads ``proc``. How busy the processors are is measured between one reading and the next."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._last = self._ticks()

    def families(self) -> Iterator[Family]:
        """The gauges; none if ``proc`` cannot be read."""
        memory = self._memory()
        if memory:
            total, free = memory["MemTotal"], memory["MemAvailable"]
            yield _gauge("nv_cpu_utilization", "CPU utilization rate [0.0 - 1.0]", self._busy())
            yield _gauge("nv_cpu_memory_total_bytes", "CPU total memory (RAM), in bytes", total)
            yield _gauge("nv_cpu_memory_used_bytes", "CPU used memory (RAM), in bytes", total - free)
            yield _gauge("process_resident_memory_bytes", "Resident memory of the server, in bytes", self._resident())

    def _ticks(self) -> tuple[int, int]:
        """Idle and all clock ticks of the machine so far."""
        text = self._read("stat").partition("\n")[0]
        ticks = [int(number) for number in text.split()[1:]]
        return sum(ticks[3:5]), sum(ticks[:8])

    def _busy(self) -> float:
        (idle_before, all_before), self._last = self._last, self._ticks()
        idle, everything = self._last[0] - idle_before, self._last[1] - all_before
        return 1 - idle / everything if everything > 0 else 0.0

    def _memory(self) -> dict[str, int]:
        """Bytes by name."""
        lines = (line.partition(":") for line in self._read("meminfo").splitlines())
        return {name: int(rest.removesuffix(" kB")) * 1024 for name, _, rest in lines if rest.endswith(" kB")}

    def _resident(self) -> int:
        pages = self._read("self/statm").split()[1:2]
        return int(pages[0]) * os.sysconf("SC_PAGE_SIZE") if pages else 0

    def _read(self, name: str) -> str:
        try:
            return (self._proc / name).read_text(encoding="ascii")
        except OSError:  # It is not there, or there is no descriptor left: then the other metrics are wanted.
            return ""


def _gauge(name: str, text: str, value: float) -> Family:
    return Family(name, "gauge", text, [((), value)])


class Source(Protocol):
    """Something that has metrics."""

    def families(self) -> Iterable[Family]:
        """Those of this moment."""


def page_text(
    models: Sequence[ModelMetrics], sources: Iterable[Source], settings: MetricsSettings = MetricsSettings()
) -> str:
    """The whole page, metrics that models make themselves at the end. ``models`` are those that are ready;
    ``settings`` select what is shown of latencies."""
    families = [*inference_families(models, settings)]
    for source in sources:
        families += source.families()
    return render(families) + REGISTRY.text()
