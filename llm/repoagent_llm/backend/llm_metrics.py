"""Numbers about requests and iterations: outputs of a response, and metrics under the names of tensorrtllm_backend."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

from repoagent.serving.measuring.custom_metrics import REGISTRY, Metric, MetricFamily, MetricKind
from repoagent_llm import InflightBatchingStats, IterationStats, KvCacheStats, RequestPerfMetrics

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

#: What gateways read, under the names of vLLM: they are those of the protocol of llm-d and of Kubernetes' gateways.
_GATEWAY: Final = (
    ("vllm:num_requests_waiting", "Number of requests that wait."),
    ("vllm:num_requests_running", "Number of requests in the last iteration."),
    ("vllm:kv_cache_usage_perc", "KV cache usage; 1 means all of it."),
)
_CACHE_INFO: Final = "vllm:cache_config_info"

#: Families of histograms, and what each counts as its only label states.
_LENGTHS: Final = (("nv_llm_input_token_len", "total_input_tokens"), ("nv_llm_output_token_len", "total_output_tokens"))
_BUCKETS: Final = (10, 50, 100, 500, 1000)


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


class LlmMetrics:
    """The metrics of one version of a model; they go with :meth:`close`."""

    def __init__(self, model: str, version: str) -> None:
        self._own = {"model": model, "version": version}
        self._families: list[tuple[MetricFamily, list[Metric]]] = []
        self._gauges = [
            self._add(name, description, MetricKind.GAUGE, label, values)
            for name, description, label, values in _FAMILIES
        ]
        self._gateway = [self._put(name, text, {}) for name, text in _GATEWAY]
        self._informed = False
        self._lengths = [
            self._add(name, "TRT LLM response metrics", MetricKind.HISTOGRAM, "response_metric_type", (kind,))[0]
            for name, kind in _LENGTHS
        ]

    def _put(self, name: str, description: str, labels: dict[str, str]) -> Metric:
        """A gauge under a name of vLLM, whose label of the model is another one."""
        family = REGISTRY.family(name, description, MetricKind.GAUGE)
        metric = family.add({"model_name": self._own["model"], "version": self._own["version"], **labels})
        self._families.append((family, [metric]))
        return metric

    def _add(
        self, name: str, description: str, kind: MetricKind, label: str, values: Sequence[str]
    ) -> Sequence[Metric]:
        family = REGISTRY.family(name, description, kind)
        buckets = _BUCKETS if kind is MetricKind.HISTOGRAM else ()
        metrics = [family.add({**self._own, label: value}, buckets) for value in values]
        self._families.append((family, metrics))
        return metrics

    def count(self, prompt: int, generated: int) -> None:
        """Count a request that ended by its tokens."""
        for metric, number in zip(self._lengths, (prompt, generated), strict=True):
            metric.observe(number)

    def show(self, stats: IterationStats) -> None:
        """Set all gauges to the numbers of an iteration."""
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
        for metrics, numbers in zip(self._gauges, rows, strict=True):
            for metric, number in zip(metrics, numbers, strict=True):
                metric.set(number)
        used = cache.used_num_blocks / max(1, cache.max_num_blocks)
        for metric, number in zip(self._gateway, (waiting, batch.num_scheduled_requests, used), strict=True):
            metric.set(number)
        if not self._informed:
            self._informed = True
            labels = {"block_size": str(cache.tokens_per_block), "num_gpu_blocks": str(cache.max_num_blocks)}
            self._put(_CACHE_INFO, "The blocks of the KV cache.", labels).set(1)

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
        while self._families:
            family, metrics = self._families.pop()
            for metric in metrics:
                family.remove(metric)
            REGISTRY.release(family)
