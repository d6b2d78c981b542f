"""Custom metrics: what each kind can do, sharing, and the text that Prometheus' own parser reads."""

from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedError
from repoagent.serving.measuring.custom_metrics import MetricKind, MetricRegistry


def test_each_kind_does_its_own_operations_and_no_other() -> None:
    registry = MetricRegistry()
    counter = registry.family("c", "a counter", MetricKind.COUNTER).add({})
    gauge = registry.family("g", "a gauge", MetricKind.GAUGE).add({})
    histogram = registry.family("h", "a histogram", MetricKind.HISTOGRAM).add({}, [1.0])
    counter.increment(2)
    gauge.set(5)
    gauge.increment(-1)
    histogram.observe(0.5)
    assert (counter.value, gauge.value) == (2, 4)
    for call, text in (
        (lambda: counter.set(1), "TRITONSERVER_METRIC_KIND_COUNTER does not support Set"),
        (lambda: counter.observe(1), "TRITONSERVER_METRIC_KIND_COUNTER does not support Observe"),
        (lambda: histogram.value, "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Value"),
        (lambda: histogram.increment(1), "TRITONSERVER_METRIC_KIND_HISTOGRAM does not support Increment"),
    ):
        with pytest.raises(UnsupportedError, match=text):
            call()
    with pytest.raises(InvalidArgumentError, match="non-negative"):
        counter.increment(-1)


def test_the_text_is_what_prometheus_reads() -> None:
    registry = MetricRegistry()
    registry.family("hits_total", "how often", MetricKind.COUNTER).add({"who": 'a "quoted"\\ name\n'}).increment(3)
    seconds = registry.family("seconds", "how long", MetricKind.HISTOGRAM).add({"m": "x"}, [0.1, 1.0])
    for value in (0.05, 0.1, 0.5, 7.0):
        seconds.observe(value)
    families = {family.name: family for family in text_string_to_metric_families(registry.text())}
    (hits,) = families["hits"].samples
    assert (hits.labels, hits.value) == ({"who": 'a "quoted"\\ name\n'}, 3)
    samples = {(s.name, s.labels.get("le")): s.value for s in families["seconds"].samples}
    assert samples[("seconds_bucket", "0.1")] == 2
    assert samples[("seconds_bucket", "1")] == 3
    assert samples[("seconds_bucket", "+Inf")] == samples[("seconds_count", None)] == 4
    assert samples[("seconds_sum", None)] == pytest.approx(7.65)


def test_any_number_can_be_told_and_read_back() -> None:
    registry = MetricRegistry()
    values: list[Any] = [np.float32(0.5), np.int64(3), float("nan"), float("inf"), -1, True]
    for number, value in enumerate(values):
        registry.family(f"g{number}", 'a "gauge"\\ of\ntwo lines', MetricKind.GAUGE).add({}).set(value)
    families = list(text_string_to_metric_families(registry.text()))
    assert [family.documentation for family in families] == ['a "gauge"\\ of\ntwo lines'] * len(values)
    for family, value in zip(families, values, strict=True):
        assert family.samples[0].value == pytest.approx(float(value), nan_ok=True)


def test_what_would_make_prometheus_refuse_the_whole_page_is_refused() -> None:
    registry = MetricRegistry()
    for name in ("", "two words", "1st", "a-b"):
        with pytest.raises(InvalidArgumentError, match=f"'{name}' cannot be the name of a metric"):
            registry.family(name, "text", MetricKind.COUNTER)
    family = registry.family("c", "text", MetricKind.COUNTER)
    labels: Any
    for labels in ({"a b": "x"}, {"gpu": 0}, {"": "x"}):
        with pytest.raises(InvalidArgumentError, match="label"):
            family.add(labels)
    counter = family.add({})
    with pytest.raises(InvalidArgumentError, match="non-negative"):
        counter.increment(float("nan"))
    with pytest.raises(ValueError, match="could not convert"):
        registry.family("g", "text", MetricKind.GAUGE).add({}).set("text")  # type: ignore[arg-type]
    assert len(list(text_string_to_metric_families(registry.text()))) == 2


def test_a_family_is_shared_until_its_last_user_lets_go() -> None:
    registry = MetricRegistry()
    first = registry.family("f", "shared", MetricKind.COUNTER)
    second = registry.family("f", "shared", MetricKind.COUNTER)
    assert first is second
    metric = first.add({"a": "b"})
    assert second.add({"a": "b"}) is metric
    first.remove(metric)
    assert first.series()
    first.remove(metric)
    assert not first.series()
    registry.release(first)
    registry.release(second)
    registry.family("f", "another now", MetricKind.GAUGE)


def test_a_family_cannot_be_two_things() -> None:
    registry = MetricRegistry()
    registry.family("f", "one", MetricKind.COUNTER)
    with pytest.raises(AlreadyExistsError, match="metric family 'f'"):
        registry.family("f", "one", MetricKind.GAUGE)


def test_who_keeps_series_up_to_date_is_asked_before_they_are_read() -> None:
    registry = MetricRegistry()
    gauge = registry.family("g", "a gauge", MetricKind.GAUGE).add({})

    def refresh() -> None:
        gauge.increment(1)

    registry.refresh_by(refresh)
    assert "g 1" in registry.text().splitlines()
    assert registry.series("g")[0].value == 2
    registry.refresh_no_more(refresh)
    registry.refresh_no_more(refresh)
    assert "g 2" in registry.text().splitlines()


@pytest.mark.parametrize("buckets", [["x"], [10**400], [float("nan")], [[1]], "ab", None], ids=str)
def test_a_bucket_must_be_a_number(buckets: Any) -> None:
    registry = MetricRegistry()
    family = registry.family("h", "a histogram", MetricKind.HISTOGRAM)
    with pytest.raises(InvalidArgumentError, match="a bucket of a histogram is not a number"):
        family.add({}, buckets)
    assert registry.text() == ""


@pytest.mark.parametrize("buckets", [[2, 1], [1, 1.0], [1, float("inf"), float("inf")]], ids=str)
def test_buckets_must_ascend(buckets: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="the buckets of a histogram must ascend"):
        MetricRegistry().family("h", "a histogram", MetricKind.HISTOGRAM).add({}, buckets)


def test_the_last_bucket_takes_all_whether_it_is_given_or_not() -> None:
    for buckets in ([1, 2.0, float("inf")], [1, 2.0]):
        registry = MetricRegistry()
        registry.family("h", "a histogram", MetricKind.HISTOGRAM).add({}, buckets).observe(1.5)
        lines = [line for line in registry.text().splitlines() if "_bucket" in line]
        assert lines == ['h_bucket{le="1"} 0', 'h_bucket{le="2"} 1', 'h_bucket{le="+Inf"} 1']


@pytest.mark.parametrize("text", [5, None, "\ud800"], ids=ascii)
def test_descriptions_and_labels_must_be_text_that_can_be_sent(text: Any) -> None:
    registry = MetricRegistry()
    with pytest.raises(InvalidArgumentError, match="it must be text"):
        registry.family("g", text, MetricKind.GAUGE)
    family = registry.family("g", "a gauge", MetricKind.GAUGE)
    with pytest.raises(InvalidArgumentError, match="must be text"):
        family.add({"label": text})


def test_what_cannot_be_refreshed_keeps_nothing_else_from_the_page(caplog: pytest.LogCaptureFixture) -> None:
    registry = MetricRegistry()
    registry.family("g", "a gauge", MetricKind.GAUGE).add({}).set(2)

    def refresh() -> None:
        raise OSError("no descriptor left")

    registry.refresh_by(refresh)
    assert "g 2" in registry.text().splitlines()
    assert registry.series("g")[0].value == 2
    assert "cannot be brought up to date" in caplog.text
