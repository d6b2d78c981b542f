"""The names of the executor, those of TensorRT-LLM's, in one module: ``repoagent_llm`` passes them on at first use."""

from importlib.metadata import version

import repoagent_llm.kv_cache as kv_cache
from repoagent.turns import Turns
from repoagent_llm.engine_config import DraftTargetDecodingConfig, EngineConfig
from repoagent_llm.executor import Executor
from repoagent_llm.runner.runner_options import RunnerOptions
from repoagent_llm.types.adapters import (
    ContextPhaseParams,
    EagleConfig,
    ExternalDraftTokensConfig,
    LoraConfig,
    MropeConfig,
    MultimodalInput,
    PromptTuningConfig,
)
from repoagent_llm.types.cache_config import (
    CacheTransceiverConfig,
    KvCacheConfig,
    KvCacheRetentionConfig,
    PeftCacheConfig,
    RuntimeDefaults,
)
from repoagent_llm.types.decoding_config import (
    DebugConfig,
    DecodingConfig,
    DecodingMode,
    ExtendedRuntimePerfKnobConfig,
    LogitsPostProcessorConfig,
    LookaheadDecodingConfig,
    SpeculativeDecodingConfig,
)
from repoagent_llm.types.enums import (
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
from repoagent_llm.types.executor_config import (
    DynamicBatchConfig,
    ExecutorConfig,
    OrchestratorConfig,
    ParallelConfig,
    SchedulerConfig,
)
from repoagent_llm.types.guidance import GuidedDecodingConfig, GuidedDecodingParams
from repoagent_llm.types.request import AdditionalModelOutput, Endings, OutputConfig, Request, SamplingConfig
from repoagent_llm.types.result import (
    AdditionalOutput,
    KvCacheMetrics,
    RequestPerfMetrics,
    Response,
    Result,
    SpeculativeDecodingFastLogitsInfo,
    SpeculativeDecodingMetrics,
    TimingMetrics,
)
from repoagent_llm.types.serialization import deserialize_result, serialize_result
from repoagent_llm.types.stats import (
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
from repoagent_llm.types.tensors import to_framework

__version__ = version("repoagent-llm")

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
    "EngineConfig",
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
