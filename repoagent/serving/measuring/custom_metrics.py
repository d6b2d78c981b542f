"""Metrics that models and embedders make themselves: families of counters, gauges and histograms with labels.

As in Triton they belong to the process, not to one server: a family made before a server starts is shown by it too.
"""

import bisect
import enum
import itertools
import logging
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedError
from repoagent.serving.measuring.prometheus import Family, Part, number, render

logger = logging.getLogger(__name__)

_NAME: Final = re.compile(r"[A-Za-z_:][A-Za-z0-9_:]*")
_OF_THE_SERVER: Final = (
    "nv_cache_",
    "nv_cpu_",
    "nv_energy_",
    "nv_gpu_",
    "nv_inference_",
    "nv_model_",
    "nv_pinned_",
    "process_",
    "repoagent_",
)
"""How the names of the server's own families begin, Triton's that are not here yet among them."""
_LABEL: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class MetricKind(enum.IntEnum):
    """Numbers as in ``TRITONSERVER_MetricKind``."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class Metric:
    """One time series of a family. Safe to use from any thread.

    Raises:
        InvalidArgumentError: a label is not text, or its name none that Prometheus takes; or buckets
            are no numbers, or do not ascend.
    """

    def __init__(self, kind: MetricKind, labels: Mapping[str, str], buckets: Sequence[float] = ()) -> None:
        for name, text in labels.items():
            if not (_is_text(text) and isinstance(name, str) and _LABEL.fullmatch(name)):
                raise InvalidArgumentError(
                    f"label {name!r}: {text!r} of a metric must be text, under a name of letters, digits and '_'"
                )
        self.kind: Final = kind
        self.labels: Final = dict(labels)
        self._bounds: Final = _bounds(buckets)
        self._counts = [0] * len(self._bounds)
        self._value = 0.0
        self._lock: Final = threading.Lock()

    @property
    def value(self) -> float:
        """The value of a counter or gauge."""
        self._only("Value", MetricKind.COUNTER, MetricKind.GAUGE)
        return self._value

    def increment(self, amount: float) -> None:
        """Add to a counter (0 or more) or a gauge."""
        self._only("Increment", MetricKind.COUNTER, MetricKind.GAUGE)
        amount = float(amount)  # NumPy's numbers are written in a form of their own.
        if self.kind is MetricKind.COUNTER and not amount >= 0:
            raise InvalidArgumentError(
                "TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically by non-negative values."
            )
        with self._lock:
            self._value += amount

    def set(self, value: float) -> None:
        self._only("Set", MetricKind.GAUGE)
        number = float(value)
        with self._lock:
            self._value = number

    def observe(self, value: float) -> None:
        """Count a value in a histogram."""
        self._only("Observe", MetricKind.HISTOGRAM)
        number = float(value)
        with self._lock:
            self._counts[bisect.bisect_left(self._bounds, number)] += 1
            self._value += number

    def cumulated(self) -> tuple[list[tuple[float, int]], float]:
        """A histogram's upper bounds, each with how many values are not above it, and the sum of all values."""
        with self._lock:
            counts, total = list(self._counts), self._value
        return list(zip(self._bounds, itertools.accumulate(counts), strict=True)), total

    def parts(self, before: Sequence[tuple[str, str]] = ()) -> Iterator[Part]:
        """The series as it is shown, with the labels ``before`` its own."""
        labels = [*before, *self.labels.items()]
        if self.kind is not MetricKind.HISTOGRAM:
            yield "", labels, self._value
            return
        counts, total = self.cumulated()
        for bound, count in counts:
            yield "_bucket", [*labels, ("le", number(bound))], count
        yield "_sum", labels, total
        yield "_count", labels, counts[-1][1]

    def _only(self, operation: str, *kinds: MetricKind) -> None:
        if self.kind not in kinds:
            raise UnsupportedError(f"TRITONSERVER_METRIC_KIND_{self.kind.name} does not support {operation}")


class MetricFamily:
    """Series of one name and kind. Close it when nothing reports to it any more.

    Raises:
        InvalidArgumentError: Prometheus takes no such name or description, and would refuse the whole page.
    """

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        if not _is_text(description):
            raise InvalidArgumentError(f"the description of metric {name!r} is {description!r}; it must be text")
        if not (isinstance(name, str) and _NAME.fullmatch(name)):
            raise InvalidArgumentError(
                f"{name!r} cannot be the name of a metric: it must be of letters, digits, '_' and ':', and begin with "
                "no digit"
            )
        self.name: Final = name
        self.description: Final = description
        self.kind: Final = kind
        self._lock: Final = threading.Lock()
        self._metrics: dict[tuple[tuple[str, str], ...], tuple[Metric, int]] = {}

    def add(self, labels: Mapping[str, str], buckets: Sequence[float] = ()) -> Metric:
        """The series of these labels; the same one for everybody who asks."""
        key = tuple(sorted(labels.items()))
        with self._lock:
            metric, users = self._metrics.get(key, (None, 0))
            metric = metric or Metric(self.kind, labels, buckets)
            self._metrics[key] = (metric, users + 1)
            return metric

    def remove(self, metric: Metric) -> None:
        """Undo one :meth:`add`; the series goes with its last user."""
        key = tuple(sorted(metric.labels.items()))
        with self._lock:
            _, users = self._metrics[key]
            if users > 1:
                self._metrics[key] = (metric, users - 1)
            else:
                del self._metrics[key]

    def series(self) -> list[Metric]:
        with self._lock:
            return [metric for metric, _ in self._metrics.values()]

    def shown(self) -> Family:
        """The family as it is now."""
        parts = [part for metric in self.series() for part in metric.parts()]
        return Family(self.name, self.kind.name.lower(), self.description, parts=parts)


class MetricRegistry:
    """All families of a process, by name."""

    def __init__(self) -> None:
        self._lock: Final = threading.Lock()
        self._families: dict[str, tuple[MetricFamily, int]] = {}
        self._refreshers: dict[Callable[[], None], None] = {}

    def refresh_by(self, refresh: Callable[[], None]) -> None:
        """Have ``refresh`` called before series are read: what is costly to keep up to date is so when it is asked for.

        It is called on the reader's thread, perhaps on several at once, and returns soon. If it raises, that is logged.
        """
        with self._lock:
            self._refreshers[refresh] = None

    def refresh_no_more(self, refresh: Callable[[], None]) -> None:
        """Undo :meth:`refresh_by`; may be called twice."""
        with self._lock:
            self._refreshers.pop(refresh, None)

    def _refresh(self) -> None:
        with self._lock:
            refreshers = list(self._refreshers)
        for refresh in refreshers:
            try:
                refresh()
            except Exception:  # The others are still to be shown.
                logger.exception("some metrics cannot be brought up to date")

    def family(self, name: str, description: str, kind: MetricKind) -> MetricFamily:
        """The family of this name; the same one for everybody, with the description that it was made with.

        Raises:
            AlreadyExistsError: there is one of another kind.
            InvalidArgumentError: no family can have that name, or only one of the server.
        """
        if isinstance(name, str) and name.startswith(_OF_THE_SERVER):
            raise InvalidArgumentError(
                f"metric family {name!r} has a name of the server's own metrics: begin it with something other than "
                f"{', '.join(_OF_THE_SERVER)}"
            )
        with self._lock:
            found, users = self._families.get(name, (None, 0))
            if found is not None and found.kind != kind:
                raise AlreadyExistsError(f"metric family '{name}' exists with another kind: {found.kind.name}")
            family = found or MetricFamily(name, description, kind)
            self._families[name] = (family, users + 1)
            return family

    def release(self, family: MetricFamily) -> None:
        """Undo one :meth:`family`; it is shown no more once its last user has gone."""
        with self._lock:
            _, users = self._families[family.name]
            if users > 1:
                self._families[family.name] = (family, users - 1)
            else:
                del self._families[family.name]

    def series(self, name: str) -> list[Metric]:
        """The series of the family of that name; none if there is no such family."""
        self._refresh()
        with self._lock:
            family, _ = self._families.get(name, (None, 0))
        return [] if family is None else family.series()

    def text(self) -> str:
        """Everything in the Prometheus text format."""
        self._refresh()
        with self._lock:
            families = [family for family, _ in self._families.values()]
        return render(family.shown() for family in families)


#: The families of this process (see the top of the file for why there is one).
REGISTRY: Final = MetricRegistry()


def _is_text(value: object) -> bool:
    """Whether ``value`` can be part of the page: one series that cannot be written would take all others with it."""
    try:
        return isinstance(value, str) and value.encode().decode() == value
    except UnicodeEncodeError:
        return False


def _bounds(buckets: Sequence[float]) -> tuple[float, ...]:
    """The upper bounds of a histogram with these buckets."""
    try:
        bounds = [*map(float, buckets)]
    except (TypeError, ValueError, OverflowError):
        bounds = [math.nan]
    if any(map(math.isnan, bounds)):
        raise InvalidArgumentError("a bucket of a histogram is not a number")
    if any(low >= high for low, high in itertools.pairwise(bounds)):
        raise InvalidArgumentError(f"the buckets of a histogram must ascend, not {bounds[:16]}")
    return (*bounds,) if bounds[-1:] == [math.inf] else (*bounds, math.inf)
