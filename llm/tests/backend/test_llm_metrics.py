"""The gauges of a model under TensorRT-LLM's names."""

from repoagent_llm import InflightBatchingStats, IterationStats, KvCacheStats
from repoagent_llm.backend.llm_metrics import LlmMetrics

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
