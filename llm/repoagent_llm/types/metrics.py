"""Per-request performance metrics."""

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Annotated

from repoagent_llm.types import rules
from repoagent_llm.types.record import Record

__all__ = ["KvCacheMetrics", "RequestPerfMetrics", "SpeculativeDecodingMetrics", "TimingMetrics"]

_integer = rules.integer()
_moment = Annotated[timedelta, rules.duration]
_count = Annotated[int, _integer]
_iteration = Annotated[int | None, rules.maybe(rules.unsigned64)]
ZERO = timedelta()


@dataclass(eq=False)
class TimingMetrics(Record, pickled=7):
    """Moments as time since the epoch of ``time.monotonic()``; zero: it has not happened."""

    arrival_time: _moment = ZERO
    first_scheduled_time: _moment = ZERO
    first_token_time: _moment = ZERO
    last_token_time: _moment = ZERO
    kv_cache_transfer_start: _moment = ZERO
    kv_cache_transfer_end: _moment = ZERO
    kv_cache_size: Annotated[int, rules.unsigned64] = 0


@dataclass(eq=False)
class KvCacheMetrics(Record, pickled=5):
    """KV-cache blocks of one request; a block counts as reused when any of its tokens was."""

    num_total_allocated_blocks: _count = 0
    num_new_allocated_blocks: _count = 0
    num_reused_blocks: _count = 0
    num_missed_blocks: _count = 0
    kv_cache_hit_rate: Annotated[float, rules.float32()] = 0.0


@dataclass(eq=False)
class SpeculativeDecodingMetrics(Record, pickled=3):
    """How many draft tokens were right."""

    acceptance_rate: Annotated[float, rules.float32()] = 0.0
    total_accepted_draft_tokens: _count = 0
    total_draft_tokens: _count = 0


@dataclass(eq=False)
class RequestPerfMetrics(Record, pickled=6):
    """Performance of one request; the sub-objects are kept by reference. Iterations count from the executor's start."""

    timing_metrics: Annotated[TimingMetrics, rules.instance(TimingMetrics)] = field(default_factory=TimingMetrics)
    kv_cache_metrics: Annotated[KvCacheMetrics, rules.instance(KvCacheMetrics)] = field(default_factory=KvCacheMetrics)
    speculative_decoding: Annotated[SpeculativeDecodingMetrics, rules.instance(SpeculativeDecodingMetrics)] = field(
        default_factory=SpeculativeDecodingMetrics
    )
    first_iter: _iteration = None
    last_iter: _iteration = None
    iter: _iteration = None
