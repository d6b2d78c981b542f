"""``Metric`` and ``MetricFamily`` as a ``model.py`` makes them; shown beside the server's own."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

from repoagent.serving.backends.python.model.errors import TritonModelException
from repoagent.serving.measuring import custom_metrics as metrics
from repoagent.serving.measuring.custom_metrics import REGISTRY, MetricKind, MetricRegistry

__all__ = ["Metric", "MetricFamily"]


class Metric:
    """One series; made with ``MetricFamily.Metric(labels={...})``."""

    def __init__(self, family: metrics.MetricFamily, labels: Mapping[str, str], buckets: Sequence[float]) -> None:
        self._metric = family.add(labels, buckets)

    def increment(self, value: float) -> None:
        self._metric.increment(value)

    def set(self, value: float) -> None:
        self._metric.set(value)

    def observe(self, value: float) -> None:
        self._metric.observe(value)

    def value(self) -> float:
        return self._metric.value


class MetricFamily:
    """Series of one name; two models that describe a family in the same way share it."""

    COUNTER: ClassVar[MetricKind] = MetricKind.COUNTER
    GAUGE: ClassVar[MetricKind] = MetricKind.GAUGE
    HISTOGRAM: ClassVar[MetricKind] = MetricKind.HISTOGRAM
    registry: ClassVar[MetricRegistry] = REGISTRY
    """Where families are kept; in a model's own process, one that stands for the server's."""

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        self._family = self.registry.family(name, description, MetricKind(kind))

    def Metric(  # noqa: N802 - the name is part of the interface
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The series of ``labels``; ``buckets`` are the upper bounds of a histogram."""
        if (self._family.kind is MetricKind.HISTOGRAM) != (buckets is not None):
            raise TritonModelException("buckets are needed for a histogram, and for nothing else")
        return Metric(self._family, labels or {}, buckets or ())
