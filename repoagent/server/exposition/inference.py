"""Triton's inference metrics, from the counters of the core."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from repoagent.server.exposition.latencies import latency_families
from repoagent.server.exposition.settings import MetricsSettings
from repoagent.server.exposition.text import Family, Sample
from repoagent.serving.measuring.latencies import Recent

__all__ = ["ModelCounters", "inference_families"]


class Snapshot(Protocol):
    """What ``repoagent.serving.measuring.statistics.StatisticsSnapshot`` has. Durations are nanoseconds."""

    @property
    def success(self) -> int: ...
    @property
    def failures(self) -> dict[str, int]: ...
    @property
    def inference_count(self) -> int: ...
    @property
    def execution_count(self) -> int: ...
    @property
    def request_ns(self) -> int: ...
    @property
    def queue_ns(self) -> int: ...
    @property
    def compute_input_ns(self) -> int: ...
    @property
    def compute_infer_ns(self) -> int: ...
    @property
    def compute_output_ns(self) -> int: ...
    @property
    def cache_hits(self) -> int: ...
    @property
    def cache_misses(self) -> int: ...
    @property
    def cache_hit_ns(self) -> int: ...
    @property
    def cache_miss_ns(self) -> int: ...
    @property
    def recent(self) -> Recent | None: ...


class ModelCounters(Protocol):
    """What ``repoagent.serving.core.ModelMetrics`` has: the counters of one ready version."""

    @property
    def name(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def namespace(self) -> str: ...
    @property
    def waiting(self) -> int: ...
    @property
    def tags(self) -> Mapping[str, str]: ...
    @property
    def cached(self) -> bool: ...
    @property
    def statistics(self) -> Snapshot: ...


_COUNTERS: Final[tuple[tuple[str, str, Callable[[Snapshot], int]], ...]] = (
    ("request_success", "Number of successful inference requests, all batch sizes", lambda s: s.success),
    ("count", "Number of inferences performed (does not include cached requests)", lambda s: s.inference_count),
    (
        "exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda s: s.execution_count,
    ),
)

_DURATIONS: Final[tuple[tuple[str, str, Callable[[Snapshot], int]], ...]] = (
    (
        "request",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda s: s.request_ns,
    ),
    ("queue", "Cumulative inference queuing duration in microseconds (includes cached requests)", lambda s: s.queue_ns),
    (
        "compute_input",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda s: s.compute_input_ns,
    ),
    (
        "compute_infer",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda s: s.compute_infer_ns,
    ),
    (
        "compute_output",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda s: s.compute_output_ns,
    ),
)

_CACHE: Final[tuple[tuple[str, str, Callable[[Snapshot], int]], ...]] = (
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
    models: Sequence[ModelCounters],
    settings: MetricsSettings = MetricsSettings(),  # noqa: B008 - frozen
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
        yield Family(f"nv_inference_{name}_duration_us", "counter", text, samples)
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
    yield from latency_families(models, _labels, settings.summary_quantiles)


def _labels(model: ModelCounters) -> list[tuple[str, str]]:
    return [("model", model.name), *_namespace(model), ("version", model.version), *_tags(model)]


def _tags(model: ModelCounters) -> list[tuple[str, str]]:
    """The labels that the configuration of the model adds, marked as Triton marks them."""
    return [(f"_{name}", value) for name, value in sorted(model.tags.items())]


def _namespace(model: ModelCounters) -> list[tuple[str, str]]:
    return [("namespace", model.namespace)] if model.namespace else []


def _failures(models: Sequence[ModelCounters]) -> list[Sample]:
    return [
        ([("model", m.name), *_namespace(m), ("reason", reason), ("version", m.version), *_tags(m)], count)
        for m in models
        for reason, count in m.statistics.failures.items()
    ]
