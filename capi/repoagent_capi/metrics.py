"""Custom metrics of C programs."""

from dataclasses import dataclass
from typing import Any, Final

from repoagent.serving.measuring.custom_metrics import REGISTRY, Metric, MetricFamily, MetricKind
from repoagent_capi._crossing import lib
from repoagent_capi.errors import as_text, crossing
from repoagent_capi.objects import Objects
from repoagent_capi.parameters import parameters_in
from repoagent_capi.triton_bindings.values import label_texts


@dataclass(frozen=True, slots=True)
class _Series:
    family: MetricFamily
    metric: Metric


_OBJECTS: Final[Objects[MetricFamily | _Series]] = Objects("metric")


def _family(number: int) -> MetricFamily:
    found = _OBJECTS[number]
    assert isinstance(found, MetricFamily)
    return found


def _metric(number: int) -> Metric:
    found = _OBJECTS[number]
    assert isinstance(found, _Series)
    return found.metric


@crossing
def family_new(kind: int, name: Any, description: Any, family: Any) -> None:
    family[0] = _OBJECTS.add(REGISTRY.family(as_text(name), as_text(description), MetricKind(kind)))


@crossing
def metric_new(family: int, labels: Any, count: int, buckets: Any, bucket_count: int, metric: Any) -> None:
    found = _family(family)
    texts = label_texts(parameters_in(labels, count))
    metric[0] = _OBJECTS.add(_Series(found, found.add(texts, [buckets[index] for index in range(bucket_count)])))


@crossing
def metric_value(metric: int, value: Any) -> None:
    value[0] = _metric(metric).value


@crossing
def metric_change(metric: int, change: int, value: float) -> None:
    found = _metric(metric)
    match change:
        case lib.CORE_INCREMENT:
            found.increment(value)
        case lib.CORE_SET:
            found.set(value)
        case lib.CORE_OBSERVE:
            found.observe(value)


@crossing
def object_delete(number: int) -> None:
    match _OBJECTS.remove(number):
        case _Series(family, metric):
            family.remove(metric)
        case MetricFamily() as family:
            REGISTRY.release(family)
