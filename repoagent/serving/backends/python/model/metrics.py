"""``Metric`` and ``MetricFamily`` as a ``model.py`` makes them; shown beside the server's own."""

import weakref
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any, ClassVar

from repoagent.serving.backends.python.model.errors import TritonModelException, raising_tritons
from repoagent.serving.measuring import custom_metrics as metrics
from repoagent.serving.measuring.custom_metrics import REGISTRY, MetricKind, MetricRegistry


class Metric:
    """One series; made with ``MetricFamily.Metric(labels={...})``, whose object the model must keep.

    Raises:
        TypeError: a value is not a number.
        TritonModelException: its kind has no such operation, or its family has been deleted.
    """

    def __init__(self, family: "MetricFamily", metric: metrics.Metric) -> None:
        self._family = weakref.ref(family)
        self._series = metric

    @property
    def _metric(self) -> metrics.Metric:
        if self._family() is None:
            raise TritonModelException(
                "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' "
                "object should be deleted AFTER its corresponding 'Metric' objects have been deleted."
            )
        return self._series

    @raising_tritons
    def increment(self, value: float) -> None:
        self._metric.increment(_number(value))

    @raising_tritons
    def set(self, value: float) -> None:
        self._metric.set(_number(value))

    @raising_tritons
    def observe(self, value: float) -> None:
        self._metric.observe(_number(value))

    @raising_tritons
    def value(self) -> float:
        return self._metric.value


class MetricFamily:
    """Series of one name; two models that describe a family in the same way share it.

    Raises:
        TypeError: an argument is of another type.
        TritonModelException: there cannot be such a family.
    """

    COUNTER: ClassVar[MetricKind] = MetricKind.COUNTER
    GAUGE: ClassVar[MetricKind] = MetricKind.GAUGE
    HISTOGRAM: ClassVar[MetricKind] = MetricKind.HISTOGRAM
    registry: ClassVar[MetricRegistry] = REGISTRY
    """Where families are kept; in a model's own process, one that stands for the server's."""

    @raising_tritons
    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        for what, text in (("name", name), ("description", description)):
            if not isinstance(text, str):
                raise TypeError(f"the {what} of a MetricFamily must be a str, not {type(text).__name__}")
        if kind not in tuple(MetricKind):
            raise TypeError(f"kind of MetricFamily '{name}' must be MetricFamily.COUNTER, GAUGE or HISTOGRAM")
        self._family = self.registry.family(name, description, MetricKind(kind))

    @raising_tritons
    def Metric(  # noqa: N802 - the name is part of the interface
        self, labels: Mapping[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The series of ``labels``; ``buckets`` are the upper bounds of a histogram."""
        if not isinstance(labels, Mapping | None):
            raise TypeError(f"labels of a Metric must be a dict, not {type(labels).__name__}")
        if (self._family.kind is MetricKind.HISTOGRAM) != (buckets is not None):
            raise TritonModelException("buckets are needed for a histogram, and for nothing else")
        if isinstance(buckets, str) or not isinstance(buckets, Sequence | None):
            raise TypeError(f"buckets of a Metric must be a list of numbers, not {type(buckets).__name__}")
        return Metric(self, self._family.add(labels or {}, [_number(bucket) for bucket in buckets or ()]))


def _number(value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"the value of a metric must be a number, not {type(value).__name__}")
    return float(value)
