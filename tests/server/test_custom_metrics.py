import gc

import pytest

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, UnsupportedError
from repoagent.server import Metric, MetricFamily, MetricKind, Server
from repoagent.serving.measuring.custom_metrics import REGISTRY


def test_a_family_is_shown_by_a_server_while_it_lives(server: Server) -> None:
    family = MetricFamily(MetricKind.COUNTER, "test_requests_seen", "Requests seen by the test")
    metric = Metric(family, {"color": "red"})
    metric.increment(2)
    assert (metric.value, metric.kind) == (2, MetricKind.COUNTER)
    text = server.metrics()
    assert "# TYPE test_requests_seen counter\n" in text
    assert 'test_requests_seen{color="red"} 2\n' in text
    del family, metric
    gc.collect()
    assert "test_requests_seen" not in server.metrics()


def test_a_metric_keeps_its_family() -> None:
    metric = Metric(MetricFamily(MetricKind.GAUGE, "test_kept", "Kept"))
    metric.set_value(1.5)
    metric.increment(-1)
    gc.collect()
    assert "test_kept 0.5\n" in REGISTRY.text()


def test_a_counter_only_grows() -> None:
    metric = Metric(MetricFamily(MetricKind.COUNTER, "test_grows", "Grows"))
    with pytest.raises(UnsupportedError, match="TRITONSERVER_METRIC_KIND_COUNTER does not support Set"):
        metric.set_value(1)
    with pytest.raises(InvalidArgumentError, match="monotonically"):
        metric.increment(-1)
    assert metric.value == 0


def test_one_name_means_one_thing() -> None:
    family = MetricFamily(MetricKind.GAUGE, "test_meaning", "One")
    with pytest.raises(AlreadyExistsError):
        MetricFamily(MetricKind.COUNTER, "test_meaning", "One")
    assert family.name == "test_meaning"
