"""The metrics that one process of a model reports to: the server keeps them, and lets go of them with the process."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from repoagent.errors import InvalidArgumentError
from repoagent.limits import Limits
from repoagent.serving.measuring import custom_metrics as metrics

__all__ = ["ReportedMetrics"]

_LONGEST_TEXT: Final = 8192
"""Characters of a family's name and description, or of the labels of a series."""


class ReportedMetrics:
    """Families and series under numbers that the process refers to. For one thread."""

    def __init__(self, limits: Limits, registry: metrics.MetricRegistry = metrics.REGISTRY) -> None:
        self._most: Final = limits.python_series
        self._registry: Final = registry
        self._count = 0
        self._families: list[metrics.MetricFamily] = []
        self._family_numbers: dict[metrics.MetricFamily, int] = {}
        self._series: list[tuple[metrics.MetricFamily, metrics.Metric]] = []
        self._series_numbers: dict[metrics.Metric, int] = {}

    def family(self, name: str, description: str, kind: metrics.MetricKind) -> int:
        """The number of that family.

        Raises:
            RepoAgentError: there cannot be such a family, or not a further one.
        """
        _check_length(name, description)
        family = self._registry.family(name, description, kind)
        if family in self._family_numbers:
            self._registry.release(family)
        else:
            self._add(1, lambda: self._registry.release(family))
            self._family_numbers[family] = len(self._families)
            self._families.append(family)
        return self._family_numbers[family]

    def series(self, family_number: int, labels: Mapping[str, str], buckets: Sequence[float]) -> int:
        """The number of the series of these labels. Raises as :meth:`family` does."""
        family = self._families[family_number]
        _check_length(*labels, *labels.values())
        if len(buckets) > self._most:
            raise self._too_many()
        metric = family.add(labels, buckets)
        if metric in self._series_numbers:
            family.remove(metric)
        else:
            self._add(1 + len(buckets), lambda: family.remove(metric))
            self._series_numbers[metric] = len(self._series)
            self._series.append((family, metric))
        return self._series_numbers[metric]

    def metric(self, number: int) -> metrics.Metric:
        """The series of that number; raises a LookupError or TypeError."""
        return self._series[number][1]

    def release(self) -> None:
        """The process has gone: nobody reports to any of it."""
        for family, metric in self._series:
            family.remove(metric)
        for family in self._families:
            self._registry.release(family)
        for kept in (self._families, self._family_numbers, self._series, self._series_numbers):
            kept.clear()
        self._count = 0

    def _add(self, weight: int, undo: Callable[[], None]) -> None:
        if self._count + weight > self._most:
            undo()
            raise self._too_many()
        self._count += weight

    def _too_many(self) -> InvalidArgumentError:
        return InvalidArgumentError(
            f"a process of a model reports to at most {self._most} metrics: families, series, and buckets of "
            f"histograms ({Limits.flag('python_series')})"
        )


def _check_length(*texts: object) -> None:
    """Whether they are text at all is for others to find."""
    length = sum(len(text) for text in texts if isinstance(text, str))
    if length > _LONGEST_TEXT:
        raise InvalidArgumentError(
            f"the name and description of a metric, and its labels, may have {_LONGEST_TEXT} characters together, "
            f"not {length}"
        )
