"""Metrics that a program adds to those of its servers."""

import weakref
from collections.abc import Mapping

from repoagent.server.enums import MetricKind
from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent.serving.measuring.custom_metrics import MetricKind as CoreMetricKind


class MetricFamily:
    """Metrics of one name and kind. It is shown by every server of the process, as long as this object lives.

    Raises:
        AlreadyExistsError: there is one of that name with another kind.
        InvalidArgumentError: the name is not valid in Prometheus.
    """

    __slots__ = ("__weakref__", "_family", "kind")

    def __init__(self, kind: MetricKind, name: str, description: str) -> None:
        if not isinstance(kind, MetricKind):
            raise TypeError(f"the kind of a metric family must be a MetricKind, not {type(kind).__name__}")
        self.kind = kind
        self._family = REGISTRY.family(name, description, CoreMetricKind[kind.name])
        weakref.finalize(self, REGISTRY.release, self._family).atexit = False

    @property
    def name(self) -> str:
        """The name of the family."""
        return self._family.name


class Metric:
    """One time series of ``family``, identified by ``labels``."""

    __slots__ = ("__weakref__", "_family", "_metric")

    def __init__(self, family: MetricFamily, labels: Mapping[str, str] | None = None) -> None:
        self._family = family  # It stays as long as its metrics.
        self._metric = family._family.add(labels or {})
        weakref.finalize(self, family._family.remove, self._metric).atexit = False

    @property
    def kind(self) -> MetricKind:
        """What it counts."""
        return self._family.kind

    @property
    def value(self) -> float:
        """The current value."""
        return self._metric.value

    def increment(self, value: float) -> None:
        """Add ``value``.

        Raises:
            InvalidArgumentError: the metric is a counter and ``value`` is negative.
        """
        self._metric.increment(value)

    def set_value(self, value: float) -> None:
        """Set a gauge.

        Raises:
            UnsupportedError: the metric is a counter.
        """
        self._metric.set(value)
