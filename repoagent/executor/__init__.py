"""The executor: in-flight batching for language models, with the interface of TensorRT-LLM's Executor."""

from importlib.metadata import version

from repoagent.executor import kv_cache
from repoagent.executor.draft_target import DraftTargetDecodingConfig
from repoagent.executor.engine.turns import Turns
from repoagent.executor.executor import Executor
from repoagent.executor.runner.options import RunnerOptions
from repoagent.executor.types.adapters import (
    ContextPhaseParams,
    EagleConfig,
    ExternalDraftTokensConfig,
    LoraConfig,
    MropeConfig,
    MultimodalInput,
    PromptTuningConfig,
)
from repoagent.executor.types.cache_config import (
    CacheTransceiverConfig,
    KvCacheConfig,
    PeftCacheConfig,
    RuntimeDefaults,
)
from repoagent.executor.types.decoding_config import (
    DebugConfig,
    DecodingConfig,
    ExtendedRuntimePerfKnobConfig,
    LogitsPostProcessorConfig,
    SpeculativeDecodingConfig,
)
from repoagent.executor.types.decoding_mode import DecodingMode
from repoagent.executor.types.endings import Endings
from repoagent.executor.types.enums import (
    BatchingType,
    CacheTransceiverBackendType,
    CapacitySchedulerPolicy,
    CommunicationMode,
    CommunicationType,
    ContextChunkingPolicy,
    FinishReason,
    KvCacheTransferMode,
    ModelType,
    RequestStage,
    RequestType,
)
from repoagent.executor.types.executor_config import ExecutorConfig
from repoagent.executor.types.guidance import GuidedDecodingConfig, GuidedDecodingParams
from repoagent.executor.types.lookahead import LookaheadDecodingConfig
from repoagent.executor.types.metrics import (
    KvCacheMetrics,
    RequestPerfMetrics,
    SpeculativeDecodingMetrics,
    TimingMetrics,
)
from repoagent.executor.types.output import AdditionalModelOutput, OutputConfig
from repoagent.executor.types.request import Request
from repoagent.executor.types.result import AdditionalOutput, Response, Result, SpeculativeDecodingFastLogitsInfo
from repoagent.executor.types.retention import KvCacheRetentionConfig
from repoagent.executor.types.sampling import SamplingConfig
from repoagent.executor.types.scheduling_config import (
    DynamicBatchConfig,
    OrchestratorConfig,
    ParallelConfig,
    SchedulerConfig,
)
from repoagent.executor.types.serialization import deserialize_result, serialize_result
from repoagent.executor.types.stats import (
    DebugTensorsPerIteration,
    DisServingRequestStats,
    InflightBatchingStats,
    IterationStats,
    KvCacheStats,
    RequestStats,
    RequestStatsPerIteration,
    SpecDecodingStats,
    StaticBatchingStats,
)
from repoagent.executor.types.tensors import to_framework

__version__ = version("repoagent-core")

__all__ = [
    "AdditionalModelOutput",
    "AdditionalOutput",
    "BatchingType",
    "CacheTransceiverBackendType",
    "CacheTransceiverConfig",
    "CapacitySchedulerPolicy",
    "CommunicationMode",
    "CommunicationType",
    "ContextChunkingPolicy",
    "ContextPhaseParams",
    "DebugConfig",
    "DebugTensorsPerIteration",
    "DecodingConfig",
    "DecodingMode",
    "DisServingRequestStats",
    "DraftTargetDecodingConfig",
    "DynamicBatchConfig",
    "EagleConfig",
    "Endings",
    "Executor",
    "ExecutorConfig",
    "ExtendedRuntimePerfKnobConfig",
    "ExternalDraftTokensConfig",
    "FinishReason",
    "GuidedDecodingConfig",
    "GuidedDecodingParams",
    "InflightBatchingStats",
    "IterationStats",
    "KvCacheConfig",
    "KvCacheMetrics",
    "KvCacheRetentionConfig",
    "KvCacheStats",
    "KvCacheTransferMode",
    "LogitsPostProcessorConfig",
    "LookaheadDecodingConfig",
    "LoraConfig",
    "ModelType",
    "MropeConfig",
    "MultimodalInput",
    "OrchestratorConfig",
    "OutputConfig",
    "ParallelConfig",
    "PeftCacheConfig",
    "PromptTuningConfig",
    "Request",
    "RequestPerfMetrics",
    "RequestStage",
    "RequestStats",
    "RequestStatsPerIteration",
    "RequestType",
    "Response",
    "Result",
    "RunnerOptions",
    "RuntimeDefaults",
    "SamplingConfig",
    "SchedulerConfig",
    "SpecDecodingStats",
    "SpeculativeDecodingConfig",
    "SpeculativeDecodingFastLogitsInfo",
    "SpeculativeDecodingMetrics",
    "StaticBatchingStats",
    "TimingMetrics",
    "Turns",
    "deserialize_result",
    "kv_cache",
    "serialize_result",
    "to_framework",
]
