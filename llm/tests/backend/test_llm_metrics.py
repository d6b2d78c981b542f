"""The gauges of a model under TensorRT-LLM's names."""

import time

import pytest
from prometheus_client.parser import text_string_to_metric_families
from repoagent_llm import InflightBatchingStats, IterationStats, KvCacheStats
from repoagent_llm.backend.llm_metrics import Course, LlmMetrics

from repoagent.serving.measuring.custom_metrics import REGISTRY


def for_gateways() -> dict[str, float]:
    names = ("num_requests_waiting", "num_requests_running", "kv_cache_usage_perc", "cache_config_info")
    found = {name: list(REGISTRY.series(f"vllm:{name}")) for name in names}
    return {
        name: metric.value for name, series in found.items() for metric in series if metric.labels["model_name"] == "g"
    }


def shown(family: str, label: str) -> dict[str, float]:
    return {metric.labels[label]: metric.value for metric in REGISTRY.series(family) if metric.labels["model"] == "g"}


def test_an_iteration_is_shown() -> None:
    metrics = LlmMetrics("g", "1")
    stats = IterationStats(
        iter=12,
        num_active_requests=5,
        num_queued_requests=2,
        max_num_active_requests=16,
        kv_cache_stats=KvCacheStats(max_num_blocks=40, free_num_blocks=30, used_num_blocks=10, tokens_per_block=32),
        inflight_batching_stats=InflightBatchingStats(4, 1, 3, 1, 64),
    )
    metrics.show(stats)
    try:
        assert shown("nv_trt_llm_request_metrics", "request_type") == {
            "active": 5,
            "max": 16,
            "scheduled": 4,
            "context": 1,
            "waiting": 2,
        }
        assert shown("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type") == {
            "max": 40,
            "free": 30,
            "used": 10,
            "tokens_per": 32,
            "fraction": 0.25,
        }
        assert shown("nv_trt_llm_inflight_batcher_metrics", "inflight_batcher_specific_metric") == {
            "total_context_tokens": 64,
            "generation_requests": 3,
            "paused_requests": 1,
        }
        assert shown("nv_trt_llm_general_metrics", "general_type") == {"iteration_counter": 12}
        assert for_gateways() == {
            "num_requests_waiting": 2,
            "num_requests_running": 4,
            "kv_cache_usage_perc": 0.25,
            "cache_config_info": 1,
        }
        (info,) = REGISTRY.series("vllm:cache_config_info")
        assert info.labels == {"model_name": "g", "version": "1", "block_size": "32", "num_gpu_blocks": "40"}
        metrics.rest(stats)
        assert for_gateways()["num_requests_running"] == for_gateways()["kv_cache_usage_perc"] == 0
        assert shown("nv_trt_llm_request_metrics", "request_type")["active"] == 0
        assert shown("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type") == {
            "max": 40,
            "free": 40,
            "used": 0,
            "tokens_per": 32,
            "fraction": 0,
        }
    finally:
        metrics.close()
    assert not shown("nv_trt_llm_request_metrics", "request_type")
    assert not for_gateways()


def adapters() -> list[dict[str, str]]:
    series = [metric for metric in REGISTRY.series("vllm:lora_requests_info") if metric.labels["model_name"] == "g"]
    assert all(abs(metric.value - time.time()) < 60 for metric in series)
    names = ("running_lora_adapters", "waiting_lora_adapters", "max_lora")
    return [{name: metric.labels[name] for name in names} for metric in series]


def test_adapters_are_shown_by_one_series_whose_labels_change() -> None:
    metrics = LlmMetrics("g", "1")
    try:
        assert not adapters()
        for running, waiting in (({"b", "a"}, {"c"}), (set[str](), set[str]()), (set[str](), set[str]())):
            metrics.show_adapters(running, waiting, 16)
        assert adapters() == [{"running_lora_adapters": "", "waiting_lora_adapters": "", "max_lora": "16"}]
        metrics.show_adapters({"b", "a"}, {"c"}, 16)
        assert adapters() == [{"running_lora_adapters": "g:a,g:b", "waiting_lora_adapters": "g:c", "max_lora": "16"}]
    finally:
        metrics.close()
    assert not adapters()


def parsed() -> dict[str, float]:
    """The samples of dashboards, as Prometheus reads them; without buckets and labels but for how requests ended."""
    return {
        sample.name.removeprefix("vllm:") + sample.labels.get("finished_reason", ""): sample.value
        for family in text_string_to_metric_families(REGISTRY.text())
        for sample in family.samples
        if sample.labels.get("model_name") == "g" and "le" not in sample.labels
    }


def test_requests_are_counted_under_the_names_of_dashboards() -> None:
    metrics = LlmMetrics("g", "1")
    now = time.monotonic()
    try:
        metrics.count(7, 5, Course(now - 3, now - 2, "stop"), streamed=True)
        metrics.count(3, 4, Course(now - 1, now, "length"), streamed=False)
        metrics.count(3, 0, Course(now, now), streamed=True)
        found = parsed()
    finally:
        metrics.close()
    ends = {end: found[f"request_success_total{end}"] for end in ("stop", "length", "abort")}
    assert ends == {"stop": 1, "length": 1, "abort": 1}
    assert (found["prompt_tokens_total"], found["generation_tokens_total"]) == (13, 9)
    assert (found["request_prompt_tokens_sum"], found["request_generation_tokens_count"]) == (13, 3)
    assert (found["time_to_first_token_seconds_count"], found["e2e_request_latency_seconds_count"]) == (1, 3)
    assert found["time_to_first_token_seconds_sum"] == pytest.approx(1)
    assert found["request_time_per_output_token_seconds_sum"] == pytest.approx(0.5, abs=0.05)
    assert not parsed()
