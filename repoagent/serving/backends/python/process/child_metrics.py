"""Metrics that a model in a child process reports to: checked here, kept by the server."""

from collections.abc import Mapping, Sequence

from repoagent.serving.backends.python.process.remote import RemoteCore
from repoagent.serving.measuring import custom_metrics as metrics
from repoagent.serving.measuring.custom_metrics import MetricKind

__all__ = ["RemoteRegistry"]


class _RemoteMetric(metrics.Metric):
    """A series of the server. What makes no sense for its kind is refused before it is sent."""

    def __init__(
        self, core: RemoteCore, number: int, kind: MetricKind, labels: Mapping[str, str], buckets: Sequence[float]
    ) -> None:
        super().__init__(kind, labels, buckets)
        self._core = core
        self._number = number

    @property
    def value(self) -> float:
        assert super().value is not None  # Refuses kinds that have none.
        return float(self._core.ask("metric_value", [self._number]))

    def increment(self, amount: float) -> None:
        super().increment(amount)
        self._core.tell_metric(self._number, "increment", float(amount))

    def set(self, value: float) -> None:
        super().set(value)
        self._core.tell_metric(self._number, "set", float(value))

    def observe(self, value: float) -> None:
        super().observe(value)
        self._core.tell_metric(self._number, "observe", float(value))


class _RemoteFamily(metrics.MetricFamily):
    def __init__(self, core: RemoteCore, number: int, name: str, description: str, kind: MetricKind) -> None:
        super().__init__(name, description, kind)
        self._core = core
        self._number = number

    def add(self, labels: Mapping[str, str], buckets: Sequence[float] = ()) -> metrics.Metric:
        number = self._core.ask("metric", [self._number, dict(labels), list(buckets)])
        return _RemoteMetric(self._core, number, self.kind, labels, buckets)


class RemoteRegistry(metrics.MetricRegistry):
    """The families of the server's process."""

    def __init__(self, core: RemoteCore) -> None:
        super().__init__()
        self._core = core

    def family(self, name: str, description: str, kind: MetricKind) -> metrics.MetricFamily:
        number = self._core.ask("metric_family", [name, description, int(kind)])
        return _RemoteFamily(self._core, number, name, description, kind)
