"""What an ExecutorConfig may ask for that no runner here can do; refused by name when an executor is made."""

from repoagent_llm.engine_config import EngineConfig
from repoagent_llm.types.cache_config import KvCacheConfig
from repoagent_llm.types.decoding_config import (
    DebugConfig,
    DecodingConfig,
    ExtendedRuntimePerfKnobConfig,
    LogitsPostProcessorConfig,
)
from repoagent_llm.types.enums import BatchingType, CommunicationMode, ModelType
from repoagent_llm.types.executor_config import DynamicBatchConfig, ParallelConfig
from repoagent_llm.types.executor_errors import CheckError, UnsupportedFeatureError

_ONE_DEVICE = "one process serves one model here"


def check_model_type(model_type: ModelType) -> None:
    """Raise unless the model is a decoder alone."""
    if not isinstance(model_type, ModelType):
        raise TypeError(f"Executor needs a ModelType, not {model_type!r}")
    if model_type is not ModelType.DECODER_ONLY:
        raise UnsupportedFeatureError(f"ModelType.{model_type.name}", "runners serve decoder-only models")


def check_config(config: EngineConfig) -> None:
    """Raise for the first thing in ``config`` that cannot be done."""
    if config.batching_type is BatchingType.STATIC:
        raise CheckError("BatchingType.STATIC is deprecated; use BatchingType.INFLIGHT")
    _check_parallel(config.parallel_config)
    _check_tuning(config.scheduler_config.dynamic_batch_config)
    _check_knobs(config.extended_runtime_perf_knob_config)
    _check_cache(config.kv_cache_config)
    _check_decoding(config.decoding_config)
    if config.speculative_config and config.decoding_config and config.decoding_config.lookahead_decoding_config:
        raise CheckError("a draft model and lookahead decoding exclude each other: set speculative_config or the other")
    transceiver = config.cache_transceiver_config
    if transceiver is not None and transceiver.backend is not None:
        raise UnsupportedFeatureError("CacheTransceiverConfig.backend", "prompts and generation run in one executor")
    if config.spec_dec_config is not None and config.spec_dec_config.fast_logits:
        raise UnsupportedFeatureError("SpeculativeDecodingConfig.fast_logits")
    _check_debug(config.debug_config)
    _check_processors(config.logits_post_processor_config)
    if config.gpu_weights_percent != 1.0:
        raise UnsupportedFeatureError("ExecutorConfig.gpu_weights_percent", "weights lie in host memory")
    for name in ("use_gpu_direct_storage", "mm_embedding_offloading", "enable_trt_overlap"):
        if getattr(config, name):
            raise UnsupportedFeatureError(f"ExecutorConfig.{name}")


def _check_tuning(config: DynamicBatchConfig | None) -> None:
    for name in ("enable_batch_size_tuning", "enable_max_num_tokens_tuning"):
        if config is not None and getattr(config, name):
            raise UnsupportedFeatureError(f"DynamicBatchConfig.{name}", "limits stay as they are configured")


def _check_knobs(config: ExtendedRuntimePerfKnobConfig) -> None:
    for name in ("enable_context_fmha_fp32_acc", "cuda_graph_mode", "cuda_graph_cache_size"):
        if getattr(config, name):
            raise UnsupportedFeatureError(f"ExtendedRuntimePerfKnobConfig.{name}", "models run on the CPU")


def _check_debug(config: DebugConfig | None) -> None:
    if config is None or config.debug_tensors_max_iterations > 0:
        return
    if config.debug_input_tensors or config.debug_output_tensors or config.debug_tensor_names:
        raise UnsupportedFeatureError(
            "DebugConfig with debug_tensors_max_iterations 0",
            "tensors are kept for get_latest_debug_tensors, not written to files; set how many iterations",
        )


def _check_processors(config: LogitsPostProcessorConfig | None) -> None:
    for name, processor in ((config and config.processor_map) or {}).items():
        if not callable(processor):
            raise CheckError(f"LogitsPostProcessorConfig.processor_map[{name!r}] must be callable, not {processor!r}")


def _check_parallel(config: ParallelConfig | None) -> None:
    if config is None:
        return
    if config.communication_mode is CommunicationMode.ORCHESTRATOR or config.orchestrator_config is not None:
        raise UnsupportedFeatureError("CommunicationMode.ORCHESTRATOR", _ONE_DEVICE)
    for name in ("device_ids", "participant_ids"):
        if len(getattr(config, name) or ()) > 1:
            raise UnsupportedFeatureError(f"ParallelConfig.{name} with several entries", _ONE_DEVICE)
    if (config.num_nodes or 1) > 1:
        raise UnsupportedFeatureError("ParallelConfig.num_nodes above 1", _ONE_DEVICE)


def _check_cache(config: KvCacheConfig) -> None:
    for name in ("sink_token_length", "cross_kv_cache_fraction", "max_attention_window"):
        if getattr(config, name) is not None:
            raise UnsupportedFeatureError(f"KvCacheConfig.{name}", "the model's own attention window is used")
    for name in ("use_uvm", "max_gpu_total_bytes"):
        if getattr(config, name):
            raise UnsupportedFeatureError(f"KvCacheConfig.{name}", "the cache lies in host memory")
    if config.secondary_offload_min_priority is not None:
        raise UnsupportedFeatureError("KvCacheConfig.secondary_offload_min_priority", "there is one level of blocks")
    for name in ("onboard_blocks", "copy_on_partial_reuse"):
        if not getattr(config, name):
            raise UnsupportedFeatureError(f"KvCacheConfig.{name} = False", "blocks are copied when they are reused")


def _check_decoding(config: DecodingConfig | None) -> None:
    if config is None or config.decoding_mode is None:
        return
    mode = config.decoding_mode
    if mode.isMedusa() or mode.isEagle() or mode.isExplicitDraftTokens():
        raise UnsupportedFeatureError(
            f"DecodingMode.{mode.name}",
            "speculative decoding takes ExternalDraftTokensConfig, lookahead or a draft model here",
        )
