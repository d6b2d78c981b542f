"""ExecutorConfig: the settings of an executor, its scheduler among them."""

from dataclasses import dataclass, field
from pathlib import Path
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
from repoagent_llm.types.enums import (
    BatchingType,
    CapacitySchedulerPolicy,
    CommunicationMode,
    CommunicationType,
    ContextChunkingPolicy,
)
from repoagent_llm.types.executor_errors import CheckError
from repoagent_llm.types.guidance import GuidedDecodingConfig
from repoagent_llm.types.record import Record
from repoagent_llm.types.request import AdditionalModelOutput

_flag = Annotated[bool, rules.boolean]
# (up to this many requests, use this batch size): the steps on which a tuner may settle.
_BATCH_SIZES = ((144, 128), (336, 256), (672, 512), (832, 768), (1280, 1024), (1664, 1536))


@dataclass(eq=False)
class DynamicBatchConfig(Record, readonly=True, pickled=3):
    """Tuning of batch size and token budget at run time."""

    enable_batch_size_tuning: _flag
    enable_max_num_tokens_tuning: _flag
    dynamic_batch_moving_average_window: Annotated[int, rules.integer()]

    def __getstate__(self) -> tuple[Any, ...]:
        return (*super().__getstate__(), _BATCH_SIZES)

    def __setstate__(self, state: object) -> None:
        if not isinstance(state, tuple) or len(state) != 4:
            raise CheckError("Invalid DynamicBatchConfig state!")
        super().__setstate__(state[:3])


@dataclass(eq=False)
class SchedulerConfig(Record, readonly=True, pickled=3):
    """Admission and chunking."""

    capacity_scheduler_policy: Annotated[CapacitySchedulerPolicy, rules.instance(CapacitySchedulerPolicy)] = (
        CapacitySchedulerPolicy.GUARANTEED_NO_EVICT
    )
    context_chunking_policy: Annotated[
        ContextChunkingPolicy | None, rules.maybe(rules.instance(ContextChunkingPolicy))
    ] = None
    dynamic_batch_config: Annotated[DynamicBatchConfig | None, rules.maybe(rules.instance(DynamicBatchConfig))] = None


@dataclass(eq=False)
class OrchestratorConfig(Record):
    """A process that hands requests to workers."""

    is_orchestrator: _flag = True
    worker_executable_path: Annotated[str, rules.text] = ""
    orch_leader_comm: Any = None
    spawn_processes: _flag = True

    def _check_together(self) -> None:
        path = self.worker_executable_path
        if self.is_orchestrator and self.spawn_processes and not Path(path).is_file():
            raise CheckError(f"Worker executable at {path} does not exist.")


def _device_ids(value: object, where: str) -> list[int]:
    ids: list[int] = rules.list_of(rules.integer())(value, where)
    if not ids:
        raise CheckError(f"{where} must not be empty")
    return ids


@dataclass(eq=False)
class ParallelConfig(Record, pickled=6):
    """Several devices or processes for one model."""

    communication_type: Annotated[CommunicationType, rules.instance(CommunicationType)] = CommunicationType.MPI
    communication_mode: Annotated[CommunicationMode, rules.instance(CommunicationMode)] = CommunicationMode.LEADER
    device_ids: Annotated[list[int] | None, rules.maybe(_device_ids)] = None
    participant_ids: Annotated[list[int] | None, rules.maybe(rules.list_of(rules.integer()))] = None
    orchestrator_config: Annotated[OrchestratorConfig | None, rules.maybe(rules.instance(OrchestratorConfig))] = None
    num_nodes: Annotated[int | None, rules.maybe(rules.integer())] = None


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
