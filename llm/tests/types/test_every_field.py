"""No field is taken without a word: each is honoured, refused by name, or documented as without a meaning."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    CacheTransceiverBackendType,
    CacheTransceiverConfig,
    CapacitySchedulerPolicy,
    CommunicationMode,
    DecodingConfig,
    DynamicBatchConfig,
    EagleConfig,
    Executor,
    ExecutorConfig,
    ExtendedRuntimePerfKnobConfig,
    ExternalDraftTokensConfig,
    KvCacheConfig,
    KvCacheRetentionConfig,
    KvCacheTransferMode,
    LogitsPostProcessorConfig,
    LookaheadDecodingConfig,
    MropeConfig,
    MultimodalInput,
    OutputConfig,
    ParallelConfig,
    PeftCacheConfig,
    Request,
    RequestType,
    SchedulerConfig,
    SpeculativeDecodingConfig,
)
from repoagent_llm.types.adapters import ContextPhaseParams
from repoagent_llm.types.executor_errors import UnsupportedFeatureError
from repoagent_llm.types.record import Record

from llm.tests.fake_runner import FakeRunner

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "executor.md"
ONES = np.ones((1, 2), np.float32)


def _values(*pairs: tuple[str, Any]) -> tuple[tuple[str, Any], ...]:
    return pairs


def _knob(name: str, value: object) -> ExtendedRuntimePerfKnobConfig:
    """Two of the knobs are set as properties only."""
    knobs = ExtendedRuntimePerfKnobConfig()
    setattr(knobs, name, value)
    return knobs


# What may be asked for and is done; a test of that option is elsewhere.
HONOURED: dict[type[Record], str] = {
    ExecutorConfig: "max_beam_width scheduler_config kv_cache_config enable_chunked_context normalize_log_probs "
    "iter_stats_max_iterations request_stats_max_iterations max_batch_size max_num_tokens peft_cache_config "
    "logits_post_processor_config decoding_config max_queue_size debug_config guided_decoding_config "
    "additional_model_outputs",
    SchedulerConfig: "capacity_scheduler_policy context_chunking_policy",
    DynamicBatchConfig: "dynamic_batch_moving_average_window",  # with the tuning that it belongs to refused
    KvCacheConfig: "enable_block_reuse max_tokens host_cache_size event_buffer_max_size enable_partial_reuse "
    "runtime_defaults",
    KvCacheRetentionConfig: "token_range_retention_configs decode_retention_priority decode_duration_ms",
    ParallelConfig: "",
    PeftCacheConfig: "num_host_module_layer max_adapter_size host_cache_size lora_prefetch_dir",
    ExtendedRuntimePerfKnobConfig: "",
    CacheTransceiverConfig: "",
    SpeculativeDecodingConfig: "",
    LogitsPostProcessorConfig: "processor_map processor_batched",
    DecodingConfig: "lookahead_decoding_config",
    LookaheadDecodingConfig: "max_ngram_size max_verification_set_size",
    ExternalDraftTokensConfig: "tokens logits acceptance_threshold",
    OutputConfig: "return_log_probs return_context_logits return_generation_logits exclude_input_from_output "
    "return_perf_metrics additional_model_outputs",
    Request: "input_token_ids max_tokens streaming sampling_config output_config end_id bad_words stop_words "
    "embedding_bias external_draft_tokens_config prompt_tuning_config lora_config lookahead_config "
    "kv_cache_retention_config logits_post_processor_name logits_post_processor client_id return_all_generated_tokens "
    "guided_decoding_params allotted_time_ms cache_salt_id _extras",
}
# Configurations that are refused, each with the field's name in the error.
REFUSED: list[tuple[type[Record], str, Any]] = [
    (ExecutorConfig, "batching_type", None),  # an error of another kind: test_executor.py
    (ExecutorConfig, "parallel_config", None),  # by its own fields
    (ExecutorConfig, "extended_runtime_perf_knob_config", None),
    (ExecutorConfig, "spec_dec_config", None),
    (ExecutorConfig, "cache_transceiver_config", None),
    (ExecutorConfig, "use_gpu_direct_storage", ExecutorConfig(use_gpu_direct_storage=True)),
    (ExecutorConfig, "gpu_weights_percent", ExecutorConfig(gpu_weights_percent=0.5)),
    (ExecutorConfig, "mm_embedding_offloading", ExecutorConfig(mm_embedding_offloading=True)),
    (ExecutorConfig, "enable_trt_overlap", ExecutorConfig(enable_trt_overlap=True)),
    (SchedulerConfig, "dynamic_batch_config", None),
    *(
        (
            DynamicBatchConfig,
            name,
            ExecutorConfig(
                scheduler_config=SchedulerConfig(
                    CapacitySchedulerPolicy.GUARANTEED_NO_EVICT, None, DynamicBatchConfig(batch, not batch, 9)
                )
            ),
        )
        for name, batch in (("enable_batch_size_tuning", True), ("enable_max_num_tokens_tuning", False))
    ),
    *(
        (KvCacheConfig, name, ExecutorConfig(kv_cache_config=KvCacheConfig(**{name: value})))
        for name, value in _values(
            ("max_attention_window", [8]),
            ("sink_token_length", 4),
            ("cross_kv_cache_fraction", 0.5),
            ("secondary_offload_min_priority", 30),
            ("onboard_blocks", False),
            ("copy_on_partial_reuse", False),
            ("use_uvm", True),
            ("max_gpu_total_bytes", 1),
        )
    ),
    (ParallelConfig, "num_nodes", ExecutorConfig(parallel_config=ParallelConfig(num_nodes=2))),
    (
        ParallelConfig,
        "orchestrator_config",
        None,  # by the mode that it needs
    ),
    *(
        (
            ExtendedRuntimePerfKnobConfig,
            name,
            ExecutorConfig(extended_runtime_perf_knob_config=_knob(name, value)),
        )
        for name, value in _values(
            ("enable_context_fmha_fp32_acc", True),
            ("cuda_graph_mode", True),
            ("cuda_graph_cache_size", 1),
        )
    ),
    (
        CacheTransceiverConfig,
        "backend",
        ExecutorConfig(cache_transceiver_config=CacheTransceiverConfig(CacheTransceiverBackendType.UCX)),
    ),
    (
        SpeculativeDecodingConfig,
        "fast_logits",
        ExecutorConfig(spec_dec_config=SpeculativeDecodingConfig(fast_logits=True)),
    ),
    (DecodingConfig, "medusa_choices", None),  # by the mode that they set
    (DecodingConfig, "eagle_config", None),
]
# Requests that are refused.
REFUSED_REQUESTS: dict[str, Any] = {
    "position_ids": [0],
    "multimodal_input": MultimodalInput([[1]], [0], [1]),
    "multimodal_embedding": ONES,
    "mrope_config": MropeConfig(ONES, 1),
    "encoder_input_token_ids": [1],
    "request_type": RequestType.REQUEST_TYPE_GENERATION_ONLY,
    "context_phase_params": ContextPhaseParams([1], 1, None, None),
    "encoder_input_features": ONES,
    "cross_attention_mask": ONES,
    "eagle_config": EagleConfig(),
    "skip_cross_attn_blocks": ONES,
    "output_config": OutputConfig(return_encoder_output=True),
    "external_draft_tokens_config": ExternalDraftTokensConfig([1], fast_logits=True),
    "kv_cache_retention_config": KvCacheRetentionConfig([], transfer_mode=KvCacheTransferMode.GDS),
}
_REFUSED_PARTS = {(OutputConfig, "return_encoder_output"), (ExternalDraftTokensConfig, "fast_logits")}
_REFUSED_PARTS |= {(KvCacheRetentionConfig, name) for name in ("transfer_mode", "directory")}


def _documented() -> dict[str, str]:
    """Class name to what the table of fields without a meaning says of it."""
    text = PAGE.read_text(encoding="utf-8").split("## Accepted without effect")[1].split("\n## ")[0]
    rows = [line.split("|") for line in text.splitlines() if line.startswith("| `")]
    return {cells[1].strip(" `"): cells[2] for cells in rows}


@pytest.mark.parametrize("cls", HONOURED, ids=lambda cls: cls.__name__)
def test_every_field_is_honoured_refused_or_documented(cls: type[Record]) -> None:
    known = {*HONOURED[cls].split(), *(name for owner, name, _ in REFUSED if owner is cls)}
    known |= {name for owner, name in _REFUSED_PARTS if owner is cls}
    if cls is Request:
        known |= set(REFUSED_REQUESTS)
    said = _documented().get(cls.__name__, "")
    rest = [name for name in cls.__record__.rules if name not in known]
    if cls is PeftCacheConfig:
        assert "all but" in said
        assert {name for name in cls.__record__.rules if f"`{name}`" in said} == set(HONOURED[cls].split())
        return
    assert [name for name in rest if f"`{name}`" not in said] == []


@pytest.mark.parametrize(("name", "config"), [(name, config) for _, name, config in REFUSED if config is not None])
def test_configurations_are_refused_by_the_fields_name(name: str, config: ExecutorConfig) -> None:
    with pytest.raises(UnsupportedFeatureError, match=name):
        Executor.from_runner(FakeRunner(), config)


@pytest.mark.parametrize(
    "config",
    [
        ExecutorConfig(parallel_config=ParallelConfig(communication_mode=CommunicationMode.ORCHESTRATOR)),
        ExecutorConfig(decoding_config=DecodingConfig(medusa_choices=[[0]])),
        ExecutorConfig(decoding_config=DecodingConfig(eagle_config=EagleConfig())),
    ],
)
def test_modes_are_refused_by_their_name(config: ExecutorConfig) -> None:
    with pytest.raises(UnsupportedFeatureError, match=r"ORCHESTRATOR|Medusa|Eagle"):
        Executor.from_runner(FakeRunner(), config)


def test_requests_are_refused_and_whoever_asks_for_nothing_of_the_kind_is_served() -> None:
    requests: list[Request] = []
    for name, value in REFUSED_REQUESTS.items():
        requests.append(Request([4], 1))
        setattr(requests[-1], name, value)
    requests += [Request([4], 1, language_adapter_uid=1), Request([4], 1, encoder_output_length=1)]
    requests.append(Request([4], 1, kv_cache_retention_config=KvCacheRetentionConfig([], directory="/tmp")))
    executor = Executor.from_runner(FakeRunner(), ExecutorConfig())
    answers = executor.await_responses(executor.enqueue_requests(requests))
    executor.shutdown()
    assert ["is not supported" in _text(answer) for answer in answers] == [True] * len(requests)


def _text(answers: Sequence[Any]) -> str:
    return str(answers[0].error_msg)
