"""Statistics per iteration and per request, and their JSON forms."""

import json
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

from repoagent_llm.types import rules
from repoagent_llm.types.enums import RequestStage
from repoagent_llm.types.record import Record

_count = Annotated[int, rules.integer()]
_wide = Annotated[int, rules.signed64]
_single = Annotated[float, rules.float32()]
_double = Annotated[float, rules.double]
_flag = Annotated[bool, rules.boolean]


_OTHER_NAMES: Final = {"specdec_stats": "specDecodingStats"}


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join("MS" if word == "ms" else word.capitalize() for word in rest)


def _as_json(value: Any) -> Any:
    """A record as the names of its fields in C++ and their values; a part that is absent is null."""
    if isinstance(value, Record):
        names = value.__record__.rules
        return {_OTHER_NAMES.get(name) or _camel(name): _as_json(getattr(value, name)) for name in names}
    if isinstance(value, list):
        return [_as_json(item) for item in value]
    return value.name if isinstance(value, RequestStage) else value


@dataclass(eq=False)
class KvCacheStats(Record):
    """Blocks of the KV cache. ``missed``: prompt blocks that were computed; hit rate: reused / (reused + missed)."""

    max_num_blocks: _count = 0
    free_num_blocks: _count = 0
    used_num_blocks: _count = 0
    tokens_per_block: _count = 0
    alloc_total_blocks: _count = 0
    alloc_new_blocks: _count = 0
    reused_blocks: _count = 0
    missed_blocks: _count = 0
    cache_hit_rate: _single = 0.0


@dataclass(eq=False)
class StaticBatchingStats(Record):
    """Only there for static batching, which is refused."""

    num_scheduled_requests: _count = 0
    num_context_requests: _count = 0
    num_ctx_tokens: _count = 0
    num_gen_tokens: _count = 0
    empty_gen_slots: _count = 0


@dataclass(eq=False)
class InflightBatchingStats(Record):
    """What one iteration ran."""

    num_scheduled_requests: _count = 0
    num_context_requests: _count = 0
    num_gen_requests: _count = 0
    num_paused_requests: _count = 0
    num_ctx_tokens: _count = 0
    micro_batch_id: _count = 0
    avg_num_decoded_tokens_per_iter: _single = 0.0


@dataclass(eq=False)
class SpecDecodingStats(Record):
    """Draft tokens of one iteration."""

    num_draft_tokens: _wide = 0
    num_accepted_tokens: _wide = 0
    num_requests_with_draft_tokens: _wide = 0
    acceptance_length: _double = 0.0
    iter_latency_ms: _double = 0.0
    draft_overhead: _double = 0.0


def _part(cls: type) -> rules.Rule:
    return rules.maybe(rules.instance(cls))


@dataclass(eq=False)
class IterationStats(Record):
    """One iteration. Latencies in milliseconds, memory in bytes."""

    timestamp: Annotated[str, rules.text] = ""
    iter: _wide = 0
    iter_latency_ms: _double = 0.0
    new_active_requests_queue_latency_ms: _double = 0.0
    num_new_active_requests: _count = 0
    num_active_requests: _count = 0
    num_queued_requests: _count = 0
    num_completed_requests: _count = 0
    max_num_active_requests: _count = 0
    max_batch_size_static: _count = 0
    max_batch_size_tuner_recommended: _count = 0
    max_batch_size_runtime: _count = 0
    max_num_tokens_static: _count = 0
    max_num_tokens_tuner_recommended: _count = 0
    max_num_tokens_runtime: _count = 0
    gpu_mem_usage: _wide = 0
    cpu_mem_usage: _wide = 0
    pinned_mem_usage: _wide = 0
    kv_cache_stats: Annotated[KvCacheStats | None, _part(KvCacheStats)] = None
    cross_kv_cache_stats: Annotated[KvCacheStats | None, _part(KvCacheStats)] = None
    static_batching_stats: Annotated[StaticBatchingStats | None, _part(StaticBatchingStats)] = None
    inflight_batching_stats: Annotated[InflightBatchingStats | None, _part(InflightBatchingStats)] = None
    specdec_stats: Annotated[SpecDecodingStats | None, _part(SpecDecodingStats)] = None

    def to_json_str(self) -> str:
        """One JSON object; a part that is absent is null."""
        return json.dumps(_as_json(self))


@dataclass(eq=False)
class DisServingRequestStats(Record):
    """Transfer of one request's cache between two servers."""

    kv_cache_transfer_ms: _double = 0.0
    kv_cache_size: Annotated[int, rules.unsigned64] = 0


@dataclass(eq=False)
class RequestStats(Record):
    """One request in one iteration."""

    id: Annotated[int, rules.unsigned64] = 0
    stage: Annotated[RequestStage, rules.instance(RequestStage)] = RequestStage.QUEUED
    context_prefill_position: _count = 0
    num_generated_tokens: _count = 0
    avg_num_decoded_tokens_per_iter: _single = 0.0
    scheduled: _flag = False
    paused: _flag = False
    dis_serving_stats: Annotated[DisServingRequestStats | None, _part(DisServingRequestStats)] = None
    alloc_total_blocks_per_request: _count = 0
    alloc_new_blocks_per_request: _count = 0
    reused_blocks_per_request: _count = 0
    missed_blocks_per_request: _count = 0
    kv_cache_hit_rate_per_request: _single = 0.0

    def to_json_str(self) -> str:
        """One JSON object, the stage as its name."""
        return json.dumps(_as_json(self))


@dataclass(eq=False)
class RequestStatsPerIteration(Record):
    """All requests of one iteration."""

    iter: _wide = 0
    request_stats: Annotated[list[RequestStats], rules.list_of(rules.instance(RequestStats))] = field(
        default_factory=list
    )

    def to_json_str(self) -> str:
        """One JSON object with the keys iter and requestStats."""
        return json.dumps(_as_json(self))


@dataclass(eq=False)
class DebugTensorsPerIteration(Record):
    """Tensors of one iteration by name."""

    iter: _wide = 0
    debug_tensors: Annotated[dict[str, Any], rules.mapping] = field(default_factory=dict)
