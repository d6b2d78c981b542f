"""Triton's summaries of latencies, and its histogram of the time to the first response."""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from repoagent.server.exposition.text import Family, Part
from repoagent.serving.measuring.custom_metrics import Metric
from repoagent.serving.measuring.latencies import FIRST_RESPONSE

if TYPE_CHECKING:
    from repoagent.server.exposition.inference import ModelCounters, Snapshot

__all__ = ["latency_families"]

_SUMMARIES: Final[tuple[tuple[str, str, "Callable[[Snapshot], int]"], ...]] = (
    ("request", "inference request duration in microseconds (includes cached requests)", lambda s: s.request_ns),
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

_LOOKUPS: Final[tuple[tuple[str, str, "Callable[[Snapshot], int]", "Callable[[Snapshot], int]"], ...]] = (
    ("cache_hit", "cache hit duration in microseconds", lambda s: s.cache_hit_ns, lambda s: s.cache_hits),
    ("cache_miss", "cache miss duration in microseconds", lambda s: s.cache_miss_ns, lambda s: s.cache_misses),
)

Labels = Callable[["ModelCounters"], Sequence[tuple[str, str]]]


def latency_families(models: Sequence["ModelCounters"], labels: Labels, quantiles: Sequence[float]) -> Iterable[Family]:
    """The summaries and histograms of the models that keep what they are made of."""
    for name, text, read in _SUMMARIES:
        parts = [part for model in models for part in _summary(model, name, read, labels(model), quantiles)]
        yield Family(f"nv_inference_{name}_summary_us", "summary", f"Summary of {text}", parts=parts)
    for name, text, read, count in _LOOKUPS:
        parts = [
            part
            for model in models
            if model.cached
            for part in _parts(model, name, read(model.statistics), count(model.statistics), labels(model), quantiles)
        ]
        yield Family(f"nv_{name}_summary_us", "summary", f"Summary of {text}", parts=parts)
    kept = [(model, recent.first_response) for model in models if (recent := model.statistics.recent)]
    histograms = [part for model, metric in kept if metric for part in _histogram(metric, labels(model))]
    text = "Duration from request to first response in milliseconds"
    yield Family(FIRST_RESPONSE, "histogram", text, parts=histograms)


def _summary(
    model: "ModelCounters",
    name: str,
    read: "Callable[[Snapshot], int]",
    labels: Sequence[tuple[str, str]],
    quantiles: Sequence[float],
) -> Iterable[Part]:
    statistics = model.statistics
    executed = statistics.success - (statistics.cache_hits if name.startswith("compute") else 0)
    return _parts(model, name, read(statistics), executed, labels, quantiles)


def _parts(
    model: "ModelCounters",
    name: str,
    total_ns: int,
    count: int,
    labels: Sequence[tuple[str, str]],
    quantiles: Sequence[float],
) -> Iterable[Part]:
    statistics = model.statistics
    if statistics.recent is None or not statistics.recent.summaries:
        return
    values = sorted(statistics.recent.parts[name])
    for quantile in quantiles:
        yield "", [*labels, ("quantile", f"{quantile:g}")], _quantile(values, quantile)
    yield "_sum", labels, total_ns // 1000
    yield "_count", labels, count


def _quantile(values: Sequence[int], quantile: float) -> float:
    """The least of the sorted ``values`` that the share ``quantile`` of them is not above, in microseconds."""
    if not values:
        return math.nan
    place = math.ceil(quantile * len(values)) - 1
    return values[max(place, 0)] // 1000


def _histogram(metric: Metric, labels: Sequence[tuple[str, str]]) -> Iterable[Part]:
    counts, total = metric.cumulated()
    for bound, count in counts:
        yield "_bucket", [*labels, ("le", "+Inf" if math.isinf(bound) else f"{bound:g}")], count
    yield "_sum", labels, total
    yield "_count", labels, counts[-1][1]
