"""Numbers about requests and iterations: outputs of a response, and gauges under TensorRT-LLM's names."""

from datetime import timedelta
from typing import Any, Final

from repoagent.executor import InflightBatchingStats, IterationStats, KvCacheStats, RequestPerfMetrics
from repoagent.serving.metrics import REGISTRY, Metric, MetricFamily, MetricKind

__all__ = ["Gauges", "performance"]

#: Family, description, name of its label, and the values of that label.
_FAMILIES: Final = (
    (
        "nv_trt_llm_request_metrics",
        "TRT LLM request metrics",
        "request_type",
        ("active", "max", "scheduled", "context", "waiting"),
    ),
    (
        "nv_trt_llm_kv_cache_block_metrics",
        "TRT LLM KV cache block metrics",
        "kv_cache_block_type",
        ("max", "free", "used", "tokens_per", "fraction"),
    ),
    (
        "nv_trt_llm_inflight_batcher_metrics",
        "TRT LLM inflight_batcher-specific metrics",
        "inflight_batcher_specific_metric",
        ("total_context_tokens", "generation_requests", "paused_requests"),
    ),
    ("nv_trt_llm_general_metrics", "General TRT LLM metrics", "general_type", ("iteration_counter",)),
)


def performance(metrics: RequestPerfMetrics) -> dict[str, Any]:
    """The outputs of a request with ``return_perf_metrics``."""
    cache, times, drafts = metrics.kv_cache_metrics, metrics.timing_metrics, metrics.speculative_decoding
    return {
        "kv_cache_alloc_new_blocks": [cache.num_new_allocated_blocks],
        "kv_cache_reused_blocks": [cache.num_reused_blocks],
        "kv_cache_alloc_total_blocks": [cache.num_total_allocated_blocks],
        "arrival_time_ns": [_nanoseconds(times.arrival_time)],
        "first_scheduled_time_ns": [_nanoseconds(times.first_scheduled_time)],
        "first_token_time_ns": [_nanoseconds(times.first_token_time)],
        "last_token_time_ns": [_nanoseconds(times.last_token_time)],
        "acceptance_rate": [drafts.acceptance_rate],
        "total_accepted_draft_tokens": [drafts.total_accepted_draft_tokens],
        "total_draft_tokens": [drafts.total_draft_tokens],
    }


def _nanoseconds(time: timedelta) -> int:
    return time // timedelta(microseconds=1) * 1000


class Gauges:
    """The gauges of one version of a model; they go with :meth:`close`."""

    def __init__(self, model: str, version: str) -> None:
        self._series: list[tuple[MetricFamily, list[Metric]]] = []
        for name, description, label, values in _FAMILIES:
            family = REGISTRY.family(name, description, MetricKind.GAUGE)
            own = {"model": model, "version": version}
            self._series.append((family, [family.add({**own, label: value}) for value in values]))

    def show(self, stats: IterationStats) -> None:
        """Set all gauges to what an iteration says."""
        batch, cache = stats.inflight_batching_stats, stats.kv_cache_stats
        assert batch is not None
        assert cache is not None
        active, waiting = stats.num_active_requests, stats.num_queued_requests
        rows = (
            (active, stats.max_num_active_requests, batch.num_scheduled_requests, batch.num_context_requests, waiting),
            (
                cache.max_num_blocks,
                cache.free_num_blocks,
                cache.used_num_blocks,
                cache.tokens_per_block,
                cache.used_num_blocks / max(1, cache.max_num_blocks),
            ),
            (batch.num_ctx_tokens, batch.num_gen_requests, batch.num_paused_requests),
            (stats.iter,),
        )
        for (_, metrics), numbers in zip(self._series, rows, strict=True):
            for metric, number in zip(metrics, numbers, strict=True):
                metric.set(number)

    def rest(self, stats: IterationStats) -> None:
        """Show that nothing runs since the iteration of ``stats``: what is given up gets no further one."""
        cache = stats.kv_cache_stats
        assert cache is not None
        free = KvCacheStats(cache.max_num_blocks, cache.max_num_blocks, 0, cache.tokens_per_block)
        limit = stats.max_num_active_requests
        self.show(
            IterationStats(
                iter=stats.iter,
                max_num_active_requests=limit,
                kv_cache_stats=free,
                inflight_batching_stats=InflightBatchingStats(),
            )
        )

    def close(self) -> None:
        """Take the series back."""
        while self._series:
            family, metrics = self._series.pop()
            for metric in metrics:
                family.remove(metric)
            REGISTRY.release(family)
