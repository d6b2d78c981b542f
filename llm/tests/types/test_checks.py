"""The checks of each class and their texts."""

import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm.types.adapters import EagleConfig, ExternalDraftTokensConfig, LoraConfig, PromptTuningConfig
from repoagent_llm.types.cache_config import KvCacheConfig, KvCacheRetentionConfig, RuntimeDefaults
from repoagent_llm.types.decoding_config import DebugConfig, DecodingConfig, DecodingMode, LookaheadDecodingConfig
from repoagent_llm.types.executor_config import ExecutorConfig, OrchestratorConfig, ParallelConfig
from repoagent_llm.types.guidance import GuidedDecodingParams
from repoagent_llm.types.request import SamplingConfig
from repoagent_llm.types.result import AdditionalOutput, Response, Result

from repoagent.errors import InvalidArgumentError

Range = KvCacheRetentionConfig.TokenRangeRetentionConfig

SAMPLING_BAD = [
    ("beam_width", 0),
    ("beam_width", 1025),
    ("top_k", -1),
    ("top_p", 0.0),
    ("top_p", 1.1),
    ("top_p_min", -0.1),
    ("top_p_min", 1.1),
    ("top_p_reset_ids", -1),
    ("top_p_decay", 0.0),
    ("top_p_decay", 1.5),
    ("temperature", -0.1),
    ("min_tokens", -1),
    ("beam_search_diversity_rate", -1.0),
    ("repetition_penalty", 0.0),
    ("no_repeat_ngram_size", -1),
    ("num_return_sequences", 0),
    ("min_p", -0.1),
    ("min_p", 1.1),
    ("beam_width_array", [1] * 9),
]


@pytest.mark.parametrize(("field", "value"), SAMPLING_BAD)
def test_sampling_limits_hold_in_the_constructor_and_in_the_setter(field: str, value: Any) -> None:
    with pytest.raises(RuntimeError, match=f"SamplingConfig.{field}") as caught:
        SamplingConfig(**{field: value})
    assert isinstance(caught.value, InvalidArgumentError)
    config = SamplingConfig(4)
    before = getattr(config, field)
    with pytest.raises(RuntimeError, match=f"SamplingConfig.{field}"):
        setattr(config, field, value)
    assert getattr(config, field) == before


@pytest.mark.parametrize("field", ["length_penalty", "early_stopping"])
def test_two_limits_hold_in_the_constructor_only(field: str) -> None:
    with pytest.raises(RuntimeError, match=field):
        SamplingConfig(**{field: -1})  # type: ignore[arg-type]
    config = SamplingConfig()
    setattr(config, field, -1)
    assert getattr(config, field) == -1


def test_edges_of_the_sampling_limits_are_allowed() -> None:
    SamplingConfig(1024, top_k=0, top_p=1.0, top_p_min=0.0, top_p_decay=1.0, temperature=0.0, min_p=1.0, min_tokens=0)


def test_floats_are_kept_in_single_precision() -> None:
    assert SamplingConfig(temperature=0.7).temperature == float(np.float32(0.7)) != 0.7
    assert KvCacheConfig(free_gpu_memory_fraction=0.1).free_gpu_memory_fraction == float(np.float32(0.1))


def test_return_sequences_may_exceed_the_beam_width_only_without_beams() -> None:
    assert SamplingConfig(1, num_return_sequences=5).num_return_sequences == 5
    with pytest.raises(RuntimeError, match=r"num_return_sequences must be <= beam_width \(2\)"):
        SamplingConfig(2, num_return_sequences=3)


def test_a_beam_width_array_raises_the_beam_width_to_its_maximum() -> None:
    assert SamplingConfig(2, beam_width_array=[1, 5, 3]).beam_width == 5


def test_draft_tokens_are_checked() -> None:
    with pytest.raises(RuntimeError, match="must not be empty"):
        ExternalDraftTokensConfig([])
    with pytest.raises(RuntimeError, match=r"2 dimension"):
        ExternalDraftTokensConfig([1], np.zeros(3))
    with pytest.raises(RuntimeError, match=r"2 row"):
        ExternalDraftTokensConfig([1, 2], np.zeros((3, 5)))
    ExternalDraftTokensConfig([1, 2], np.zeros((1, 5)), fast_logits=True)
    with pytest.raises(RuntimeError, match="acceptance_threshold"):
        ExternalDraftTokensConfig([1], acceptance_threshold=1.5)


def test_lora_weights_need_a_config_of_equal_length() -> None:
    weights = np.zeros((2, 8), np.float32)
    with pytest.raises(RuntimeError, match="need"):
        LoraConfig(1, weights)
    with pytest.raises(RuntimeError, match="element type int32"):
        LoraConfig(1, weights, np.zeros((2, 3), np.int64))
    with pytest.raises(RuntimeError, match="equal first dimensions"):
        LoraConfig(1, weights, np.zeros((3, 3), np.int32))
    with pytest.raises(RuntimeError, match="2 dimension"):
        PromptTuningConfig(np.zeros(4))


def test_lookahead_sizes_are_checked_and_counted() -> None:
    for wrong in ((0, 3, 4), (4, 0, 4), (4, 3, -1), (2, 1, 0), (1, 1, 1)):
        with pytest.raises(RuntimeError):
            LookaheadDecodingConfig(*wrong)
    assert LookaheadDecodingConfig(4, 3, 4).calculate_speculative_resource() == (16, 3, 15, 2)
    assert LookaheadDecodingConfig.calculate_speculative_resource_tuple(1, 1, 0) == (1, 1, 0, 0)
    defaults = LookaheadDecodingConfig.get_default_lookahead_decoding_window
    assert defaults() == 4
    assert LookaheadDecodingConfig.get_default_lookahead_decoding_ngram() == 3
    assert LookaheadDecodingConfig.get_default_lookahead_decoding_verification_set() == 4


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([Range(0, None, 1), Range(8, 9, 1)], "Invalid use of end indicator."),
        ([Range(-1, 2, 1)], "Token indices must be non-negative."),
        ([Range(4, 4, 1)], "Range must have a positive, non-zero length."),
        ([Range(0, 5, 1), Range(4, 8, 1)], "Token ranges must be non-overlapping."),
    ],
)
def test_retention_ranges_are_checked(ranges: list[Range], text: str) -> None:
    with pytest.raises(RuntimeError, match=f"^{re.escape(text)}$"):
        KvCacheRetentionConfig(ranges)


def test_retention_ranges_are_sorted_and_priorities_limited() -> None:
    late, early = Range(8, None, 10), Range(0, 4, 90, timedelta(milliseconds=5))
    assert KvCacheRetentionConfig([late, early]).token_range_retention_configs == [early, late]
    text = "^Invalid priority value. Must be between 0 and 100$"
    with pytest.raises(RuntimeError, match=text):
        Range(0, 1, 101)
    with pytest.raises(RuntimeError, match=text):
        KvCacheRetentionConfig([], decode_retention_priority=-1)


def test_eagle_and_guidance_are_checked() -> None:
    with pytest.raises(RuntimeError, match="posterior_threshold"):
        EagleConfig(posterior_threshold=1.0)
    with pytest.raises(RuntimeError, match="dynamic tree"):
        EagleConfig([[0]], use_dynamic_tree=True)
    with pytest.raises(RuntimeError, match=r"unless using GuideType::kJSON\.$"):
        GuidedDecodingParams(GuidedDecodingParams.GuideType.REGEX)


def test_cache_configuration_is_checked_and_filled() -> None:
    for field, value in {
        "max_tokens": 0,
        "max_attention_window": [4, 0],
        "sink_token_length": 0,
        "free_gpu_memory_fraction": 1.0,
        "cross_kv_cache_fraction": 0.0,
    }.items():
        with pytest.raises(RuntimeError, match=field):
            KvCacheConfig(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=r"^Attention DP events gather period must be greater than 0$"):
        KvCacheConfig(attention_dp_events_gather_period_ms=0)
    config = KvCacheConfig(max_attention_window=[8], runtime_defaults=RuntimeDefaults([16], 4))
    assert (config.max_attention_window, config.sink_token_length) == ([8], 4)


def test_parallel_and_orchestrator_configuration_is_checked(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="device_ids must not be empty"):
        ParallelConfig(device_ids=[])
    missing = tmp_path / "worker"
    with pytest.raises(RuntimeError, match=f"^Worker executable at {missing} does not exist.$"):
        OrchestratorConfig(True, str(missing))
    missing.touch()
    OrchestratorConfig(True, str(missing))


def test_a_decoding_config_sets_the_mode_that_belongs_to_its_parts() -> None:
    config = DecodingConfig()
    config.lookahead_decoding_config = LookaheadDecodingConfig(4, 3, 4)
    assert config.decoding_mode is not None
    assert config.decoding_mode.isLookahead()
    for make in (DecodingMode.Medusa, DecodingMode.Lookahead, DecodingMode.ExplicitDraftTokens):
        with pytest.raises(RuntimeError, match="cannot be set alone"):
            DecodingConfig(make())
    assert DecodingConfig(medusa_choices=[[0]]).decoding_mode.isMedusa()  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_beam_width", 0), ("iter_stats_max_iterations", -1), ("max_seq_idle_microseconds", 0), ("max_batch_size", 0)],
)
def test_executor_configuration_is_checked(field: str, value: int) -> None:
    with pytest.raises(RuntimeError, match=field):
        ExecutorConfig(**{field: value})  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match=field):
        setattr(ExecutorConfig(), field, value)


def test_a_response_is_an_error_or_a_result() -> None:
    good, bad = Response(3, Result(), 9), Response(4, "no luck")
    assert (good.has_error(), bad.has_error(), good.client_id, bad.request_id) == (False, True, 9, 4)
    with pytest.raises(RuntimeError, match=r"^Cannot get the result for a response with an error: no luck$"):
        bad.result.is_final  # noqa: B018
    with pytest.raises(RuntimeError, match=r"^Cannot get the error message for a response without error$"):
        good.error_msg  # noqa: B018
    with pytest.raises(RuntimeError, match=r"^Error message should not be empty$"):
        Response(1, "")
    named = Response(request_id=1, error_msg="no luck", client_id=2), Response(1, result=good.result)
    assert (named[0].error_msg, named[0].client_id, named[1].result) == ("no luck", 2, good.result)
    for wrong in ({}, {"error_msg": "a", "result": good.result}, {"outcome": 3}):
        with pytest.raises(TypeError, match="needs an error message or a Result, not"):
            Response(1, **wrong)
    with pytest.raises(AttributeError):
        good.request_id = 5  # type: ignore[misc]


@pytest.mark.parametrize("value", ["text", b"bytes", object(), [["a"]], {"a": 1}])
def test_a_tensor_is_made_of_numbers(value: Any) -> None:
    with pytest.raises(TypeError, match=r"^AdditionalOutput.output must be a tensor, not "):
        AdditionalOutput("name", value)


def test_no_names_of_debug_tensors_are_none_or_a_list() -> None:
    assert DebugConfig(debug_tensor_names=None).debug_tensor_names == []  # type: ignore[arg-type]
    for value in ("", 0, np.ones(2)):
        with pytest.raises(TypeError, match=r"^DebugConfig.debug_tensor_names"):
            DebugConfig(debug_tensor_names=value)  # type: ignore[arg-type]
