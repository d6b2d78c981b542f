"""ExecutorConfig: the settings of an executor."""

from dataclasses import dataclass, field
from typing import Annotated, Any

from repoagent_llm.types import rules
from repoagent_llm.types.cache_config import CacheTransceiverConfig, KvCacheConfig, PeftCacheConfig
from repoagent_llm.types.decoding_config import (
    DebugConfig,
    DecodingConfig,
    ExtendedRuntimePerfKnobConfig,
    LogitsPostProcessorConfig,
    SpeculativeDecodingConfig,
)
from repoagent_llm.types.enums import BatchingType
from repoagent_llm.types.errors import CheckError
from repoagent_llm.types.guidance import GuidedDecodingConfig
from repoagent_llm.types.output import AdditionalModelOutput
from repoagent_llm.types.record import Record
from repoagent_llm.types.scheduling_config import ParallelConfig, SchedulerConfig

__all__ = ["ExecutorConfig"]

_flag = Annotated[bool, rules.boolean]
_positive = rules.maybe(rules.integer(1))


def _maybe(cls: type) -> rules.Rule:
    return rules.maybe(rules.instance(cls))


@dataclass(eq=False)
class ExecutorConfig(Record, extensible=True, pickled=29):
    """The settings of an executor. Other attributes may be set; pickles carry them."""

    max_beam_width: Annotated[int, rules.integer(1)] = 1
    scheduler_config: Annotated[SchedulerConfig, rules.instance(SchedulerConfig)] = field(
        default_factory=SchedulerConfig
    )
    kv_cache_config: Annotated[KvCacheConfig, rules.instance(KvCacheConfig)] = field(default_factory=KvCacheConfig)
    enable_chunked_context: _flag = False
    normalize_log_probs: _flag = True
    iter_stats_max_iterations: Annotated[int, rules.integer(0)] = 1000
    request_stats_max_iterations: Annotated[int, rules.integer(0)] = 0
    batching_type: Annotated[BatchingType, rules.instance(BatchingType)] = BatchingType.INFLIGHT
    max_batch_size: Annotated[int | None, _positive] = None
    max_num_tokens: Annotated[int | None, _positive] = None
    parallel_config: Annotated[ParallelConfig | None, _maybe(ParallelConfig)] = None
    peft_cache_config: Annotated[PeftCacheConfig | None, _maybe(PeftCacheConfig)] = field(
        default_factory=PeftCacheConfig
    )
    logits_post_processor_config: Annotated[LogitsPostProcessorConfig | None, _maybe(LogitsPostProcessorConfig)] = None
    decoding_config: Annotated[DecodingConfig | None, _maybe(DecodingConfig)] = None
    use_gpu_direct_storage: _flag = False
    gpu_weights_percent: Annotated[float, rules.float32()] = 1.0
    max_queue_size: Annotated[int | None, rules.maybe(rules.integer(0))] = None
    extended_runtime_perf_knob_config: Annotated[
        ExtendedRuntimePerfKnobConfig, rules.instance(ExtendedRuntimePerfKnobConfig)
    ] = field(default_factory=ExtendedRuntimePerfKnobConfig)
    debug_config: Annotated[DebugConfig | None, _maybe(DebugConfig)] = None
    recv_poll_period_ms: Annotated[int, rules.integer()] = 0
    max_seq_idle_microseconds: Annotated[int, rules.unsigned64] = 180_000_000
    spec_dec_config: Annotated[SpeculativeDecodingConfig | None, _maybe(SpeculativeDecodingConfig)] = None
    guided_decoding_config: Annotated[GuidedDecodingConfig | None, _maybe(GuidedDecodingConfig)] = None
    additional_model_outputs: Annotated[
        list[AdditionalModelOutput] | None, rules.maybe(rules.list_of(rules.instance(AdditionalModelOutput)))
    ] = None
    cache_transceiver_config: Annotated[CacheTransceiverConfig | None, _maybe(CacheTransceiverConfig)] = None
    gather_generation_logits: _flag = False
    mm_embedding_offloading: _flag = False
    enable_trt_overlap: _flag = False
    fail_fast_on_attention_window_too_large: _flag = False

    def _check_together(self) -> None:
        if self.max_seq_idle_microseconds == 0:
            raise CheckError("ExecutorConfig.max_seq_idle_microseconds must be > 0")

    def __getstate__(self) -> tuple[Any, ...]:
        extra = {name: value for name, value in self.__dict__.items() if name not in self.__record__.rules}
        return (super().__getstate__(), extra)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 2:
            raise CheckError("Invalid ExecutorConfig state!")
        super().__setstate__(state[0])
        self.__dict__.update(state[1])
