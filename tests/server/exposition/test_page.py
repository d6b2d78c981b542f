"""The metrics page."""

from dataclasses import replace
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from repoagent.api.hooks import ActionEvent, LoadEvent
from repoagent.api.report import Action
from repoagent.server.exposition.agents import AgentMetrics
from repoagent.server.exposition.page import Machine, MetricsSettings, page_text
from repoagent.serving.measuring.custom_metrics import REGISTRY, Metric, MetricKind
from repoagent.serving.measuring.latencies import PARTS, Latencies, Recent
from repoagent.serving.measuring.statistics import StatisticsSnapshot
from repoagent.serving.queries import ModelMetrics


def _statistics(**changes: Any) -> StatisticsSnapshot:
    counted = StatisticsSnapshot(
        success=3,
        failures={"BACKEND": 1, "OTHER": 0},
        inference_count=6,
        execution_count=2,
        request_ns=9_999,
        queue_ns=1_000,
        compute_input_ns=2_000,
        compute_infer_ns=3_000,
        compute_output_ns=4_000,
        cache_hits=0,
        cache_misses=0,
        cache_hit_ns=0,
        cache_miss_ns=0,
        recent=None,
    )
    return replace(counted, **changes)


def _model(name: str = "m", version: str = "1", waiting: int = 5, **others: Any) -> ModelMetrics:
    return ModelMetrics(name, version, 0, waiting, **{"statistics": _statistics(), **others})


def _values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    # The parser gives the samples of every counter the suffix that the client library would have written.
    return {
        (sample.name.removesuffix("_total"), tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_inference_counters_have_tritons_names_labels_and_units() -> None:
    values = _values(page_text([_model()], ()))
    labels = (("model", "m"), ("version", "1"))
    assert values["nv_inference_request_success", labels] == 3
    assert values["nv_inference_count", labels] == 6
    assert values["nv_inference_exec_count", labels] == 2
    assert values["nv_inference_request_duration_us", labels] == 9
    assert values["nv_inference_compute_output_duration_us", labels] == 4
    assert values["nv_inference_pending_request_count", labels] == 5
    assert values["nv_inference_request_failure", (("model", "m"), ("reason", "BACKEND"), ("version", "1"))] == 1


def test_a_namespace_is_a_label_of_its_own() -> None:
    text = page_text([_model(namespace="/models")], ())
    values = _values(text)
    assert values["nv_inference_count", (("model", "m"), ("namespace", "/models"), ("version", "1"))] == 6
    assert {"model": "m", "namespace": "/models", "reason": "BACKEND", "version": "1"} in [
        dict(labels) for name, labels in values if name == "nv_inference_request_failure"
    ]


def test_the_response_cache_is_shown_for_models_that_use_it() -> None:
    cached = _model(
        "c", cached=True, statistics=_statistics(cache_hits=3, cache_misses=2, cache_hit_ns=5_000, cache_miss_ns=7_999)
    )
    values = _values(page_text([_model(), cached], ()))
    labels = (("model", "c"), ("version", "1"))
    shown = {name: value for (name, where), value in values.items() if name.startswith("nv_cache") and where == labels}
    assert shown == {
        "nv_cache_num_hits_per_model": 3,
        "nv_cache_num_misses_per_model": 2,
        "nv_cache_hit_duration_per_model": 5,
        "nv_cache_miss_duration_per_model": 7,
    }
    assert "nv_cache" not in page_text([_model()], ())
    unasked = _values(page_text([_model("c", cached=True)], ()))
    assert unasked["nv_cache_num_hits_per_model", labels] == 0


def test_lookups_in_the_response_cache_have_summaries() -> None:
    recent = Recent({**dict.fromkeys(PARTS, ()), "cache_hit": [3_000, 1_000], "cache_miss": []}, True)
    statistics = _statistics(cache_hits=2, cache_hit_ns=4_000, recent=recent)
    values = _values(page_text([_model(cached=True, statistics=statistics)], ()))
    labels = (("model", "m"), ("version", "1"))
    assert values["nv_cache_hit_summary_us_sum", labels] == 4
    assert values["nv_cache_hit_summary_us_count", labels] == 2
    assert values["nv_cache_hit_summary_us", (("model", "m"), ("quantile", "0.9"), ("version", "1"))] == 3
    assert values["nv_cache_miss_summary_us_count", labels] == 0


def test_what_agents_do_is_counted() -> None:
    agents = AgentMetrics()
    agents.action_finished(ActionEvent("m", "decrypt", 0, Action.LOAD, 1.5, None))
    agents.action_finished(ActionEvent("m", "decrypt", 0, Action.LOAD, 0.5, "no key"))
    agents.load_finished(LoadEvent("m", "loaded", 2.5, None, None))
    agents.load_finished(LoadEvent("m", "failed", 0.1, "no key", None))
    values = _values(page_text([], [agents]))
    action = (("action", "LOAD"), ("agent", "decrypt"), ("model", "m"))
    assert values["repoagent_action_seconds", action] == 2.0
    assert values["repoagent_action_calls", action] == 2
    assert values["repoagent_action_failures", action] == 1
    assert values["repoagent_loads", (("model", "m"),)] == 1
    assert values["repoagent_load_failures", (("model", "m"),)] == 1
    assert values["repoagent_load_seconds", (("model", "m"),)] == 2.5


def test_the_machine_and_the_process_are_measured() -> None:
    values = _values(page_text([], [Machine()]))
    assert values["nv_cpu_memory_total_bytes", ()] > values["nv_cpu_memory_used_bytes", ()] > 0
    assert 1 << 20 < values["process_resident_memory_bytes", ()] < 1 << 34
    assert 0 <= values["nv_cpu_utilization", ()] <= 1


def test_the_machine_can_be_left_out() -> None:
    assert page_text([], [AgentMetrics()]) == REGISTRY.text()


def test_counters_of_time_can_be_left_out() -> None:
    cached = _model(cached=True, statistics=_statistics(cache_hits=3, cache_misses=2))
    everything = {name for name, _ in _values(page_text([cached], ()))}
    counted = {name for name, _ in _values(page_text([cached], (), MetricsSettings(counter_latencies=False)))}
    assert everything - counted == {name for name in everything if "duration" in name}
    assert "nv_cache_num_hits_per_model" in counted


def test_tags_of_a_model_are_labels() -> None:
    values = _values(page_text([_model(tags={"team": "a"})], ()))
    labels = (("_team", "a"), ("model", "m"), ("version", "1"))
    assert values["nv_inference_count", labels] == 6
    assert values["nv_inference_request_failure", (("_team", "a"), ("model", "m"), ("reason", "BACKEND"), *labels[2:])]


def test_summaries_have_quantiles_of_the_latest_requests_and_sums_of_all() -> None:
    latencies = Latencies(summaries=True)
    for number in range(1, 101):
        latencies.add(number * 1000, 0, 1000, 2000, 3000)
    latencies.add(1_000_000, 0)  # answered by the cache
    statistics = _statistics(success=3, cache_hits=1, recent=latencies.recent())
    settings = MetricsSettings(summary_latencies=True, summary_quantiles=(0.5, 0.99, 1))
    text = page_text([_model(statistics=statistics)], (), settings)
    values = _values(text)
    labels = (("model", "m"), ("version", "1"))

    def quantile(name: str, quantile: str) -> float:
        return values[f"nv_inference_{name}_summary_us", (labels[0], ("quantile", quantile), labels[1])]

    assert [quantile("request", each) for each in ("0.5", "0.99", "1")] == [51, 100, 1000]
    assert quantile("compute_output", "1") == 3
    assert values["nv_inference_request_summary_us_sum", labels] == 9
    assert values["nv_inference_request_summary_us_count", labels] == 3
    assert values["nv_inference_compute_infer_summary_us_count", labels] == 2
    assert "# TYPE nv_inference_queue_summary_us summary" in text


def test_a_summary_without_a_recent_request_has_no_number_for_its_quantiles() -> None:
    statistics = _statistics(recent=Latencies(summaries=True).recent())
    text = page_text([_model(statistics=statistics)], ())
    assert 'nv_inference_request_summary_us{model="m",version="1",quantile="0.5"} NaN' in text


def test_the_histogram_counts_what_is_not_above_each_bound() -> None:
    histogram = Metric(MetricKind.HISTOGRAM, {}, (0.5, 100.0, 1234567.0))
    latencies = Latencies(histogram, summaries=False)
    for nanoseconds in (400_000, 500_000, 99_000_000, 5_000_000_000):
        latencies.add_first_response(nanoseconds)
    statistics = _statistics(recent=latencies.recent())
    text = page_text([_model(statistics=statistics), _model("n")], ())
    values = _values(text)
    name = "nv_inference_first_response_histogram_ms"
    labels = (("model", "m"), ("version", "1"))
    counts = {bound: values[f"{name}_bucket", (("le", bound), *labels)] for bound in ("0.5", "100", "1234567", "+Inf")}
    assert counts == {"0.5": 2, "100": 3, "1234567": 4, "+Inf": 4}
    assert values[f"{name}_sum", labels] == 5099.9
    assert values[f"{name}_count", labels] == 4
    assert "_summary_us" not in text
