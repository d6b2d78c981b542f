"""Numbers about requests and iterations: outputs of a response, and metrics under the names of tensorrtllm_backend."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
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
_ADAPTERS: Final = "vllm:lora_requests_info"

#: Families of histograms, and what each counts as its only label states.
_LENGTHS: Final = (("nv_llm_input_token_len", "total_input_tokens"), ("nv_llm_output_token_len", "total_output_tokens"))
_BUCKETS: Final = (10, 50, 100, 500, 1000)

#: What dashboards of vLLM read of requests that ended: names, descriptions, and buckets of histograms.
_TOKENS: Final = (
    ("vllm:prompt_tokens_total", "Tokens of the prompts of requests that ended."),
    ("vllm:generation_tokens_total", "Tokens that requests that ended were given."),
)
_TOKEN_BUCKETS: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000)
_TOKENS_EACH: Final = (
    ("vllm:request_prompt_tokens", "Tokens of a prompt.", _TOKEN_BUCKETS),
    ("vllm:request_generation_tokens", "Tokens that a request was given.", _TOKEN_BUCKETS),
)
_FIRST_TOKEN: Final = (
    "vllm:time_to_first_token_seconds",
    "Seconds until the first token of a request that is streamed.",
    (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160, 640),
)
_PER_TOKEN: Final = (
    "vllm:request_time_per_output_token_seconds",
    "Mean seconds between the tokens of a request that is streamed.",
    (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5, 5, 7.5, 10, 20, 40, 80),
)
_WHOLE: Final = (
    "vllm:e2e_request_latency_seconds",
    "Seconds until the end of a request.",
    (0.3, 0.5, 0.8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680),
)
_ENDS: Final = ("stop", "length", "abort")


@dataclass(slots=True)
class Course:
    """When a request was where, in seconds of ``time.monotonic``, and how it ended."""

    sent: float = 0.0
    """To the executor."""
    first: float = 0.0
    """The executor's first answer; 0 before."""
    ending: str = "abort"
    """``stop``, ``length``, or ``abort`` for one that was cancelled or failed."""


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
        self._adapters: tuple[MetricFamily, list[Metric]] | None = None
        """That of adapters, whose labels change."""
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
        self._tokens = [self._put(*each, {}, MetricKind.COUNTER) for each in _TOKENS]
        self._lengths += [self._histogram(*each) for each in _TOKENS_EACH]
        self._first, self._per_token, self._whole = (
            self._histogram(*each) for each in (_FIRST_TOKEN, _PER_TOKEN, _WHOLE)
        )
        self._ended = {
            end: self._put(
                "vllm:request_success_total",
                "Requests by how they ended.",
                {"finished_reason": end},
                MetricKind.COUNTER,
            )
            for end in _ENDS
        }

    def _histogram(self, name: str, description: str, buckets: Sequence[float]) -> Metric:
        return self._put(name, description, {}, MetricKind.HISTOGRAM, buckets)

    def _put(
        self,
        name: str,
        description: str,
        labels: dict[str, str],
        kind: MetricKind = MetricKind.GAUGE,
        buckets: Sequence[float] = (),
    ) -> Metric:
        """A series under a name of vLLM, whose label of the model is another one."""
        family = REGISTRY.family(name, description, kind)
        metric = family.add({"model_name": self._own["model"], "version": self._own["version"], **labels}, buckets)
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

    def count(self, prompt: int, generated: int, course: Course, *, streamed: bool) -> None:
        """Count a request that ended by its tokens, its times and its end.

        ``streamed``: it is of one text, whose tokens came as they were made. Others come at their ends, so their first
        answer is not their first token.
        """
        numbers = (prompt, generated)
        for metric, number in zip(self._lengths, numbers * 2, strict=True):
            metric.observe(number)
        for metric, number in zip(self._tokens, numbers, strict=True):
            metric.increment(number)
        now = time.monotonic()
        self._ended[course.ending].increment(1)
        self._whole.observe(now - course.sent)
        if streamed and generated:
            self._first.observe(course.first - course.sent)
            if generated > 1:
                self._per_token.observe((now - course.first) / (generated - 1))

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

    def show_adapters(self, running: Iterable[str], waiting: Iterable[str], most: int) -> None:
        """Show which adapters have requests that run or wait, and when that was, in seconds since 1970.

        Their names are those that clients send as the model's. ``most``: how many may run at once.
        """
        labels = {"max_lora": str(most)}
        for label, names in (("running_lora_adapters", running), ("waiting_lora_adapters", waiting)):
            labels[label] = ",".join(f"{self._own['model']}:{name}" for name in sorted(names))
        former = self._adapters
        self._put(_ADAPTERS, "The LoRA adapters of requests.", labels).set(time.time())
        self._adapters = self._families[-1]
        if former is not None:
            self._families.remove(former)
            self._take_back(*former)

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
            self._take_back(*self._families.pop())

    def _take_back(self, family: MetricFamily, metrics: Sequence[Metric]) -> None:
        for metric in metrics:
            family.remove(metric)
        REGISTRY.release(family)
