"""Parameters of a model, and what the executor is told by them."""

import logging
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from repoagent_llm import CapacitySchedulerPolicy, EngineConfig
from repoagent_llm.backend.configuration import Parameters, executor_config
from repoagent_llm.backend.tokenizing import Tokenizer

from llm.tests.backend.tiny import byte_level
from repoagent.config import ModelConfig
from repoagent.errors import InvalidArgumentError, UnsafePathError, UnsupportedError

FOLDER = Path("/models/m/1")


def configured(models_at_once: int | None = None, /, **values: str) -> tuple[EngineConfig, Parameters]:
    config = ModelConfig(name="m")
    for key, value in values.items():
        config.parameters[key].string_value = value
    parameters = Parameters(config)
    settings = executor_config(
        parameters,
        FOLDER,
        Tokenizer(byte_level()),
        vocab_size=300,
        end_ids=(2,),
        models_at_once=models_at_once,
    )
    return settings, parameters


def options(config: EngineConfig) -> Any:
    return config.runner_options


def test_without_parameters_prompts_are_read_in_pieces_on_all_cores() -> None:
    config, parameters = configured()
    assert config.enable_chunked_context
    assert config.kv_cache_config.enable_block_reuse
    assert options(config).threads == len(os.sched_getaffinity(0))
    assert options(config).spinning
    assert options(config).yielding
    parameters.check_rest()


@pytest.mark.parametrize(
    ("models", "given", "threads", "spinning", "yielding"),
    [
        (None, {}, 6, True, True),
        (None, {"session.intra_op.allow_spinning": "1"}, 6, True, False),
        (None, {"session.intra_op.allow_spinning": "0"}, 6, False, False),
        (1, {}, 6, True, False),
        (2, {}, 3, False, False),
        (100, {}, 1, False, False),
        (2, {"intra_op_thread_count": "5"}, 5, False, False),
        (2, {"session.intra_op.allow_spinning": "1"}, 3, True, False),
    ],
)
def test_models_share_the_cores_unless_they_say_otherwise(
    models: int | None,
    given: dict[str, str],
    threads: int,
    spinning: bool,
    yielding: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    config, _ = configured(models, **given)
    found = options(config)
    assert (found.threads, found.spinning, found.yielding) == (threads, spinning, yielding)


def test_models_with_all_cores_take_turns() -> None:
    turns = [config.turns for config, _ in (configured(), configured())]
    assert turns[0] is turns[1]
    assert turns[0] is not None
    assert configured(None, intra_op_thread_count="2")[0].turns is None
    assert configured(1)[0].turns is None


def test_every_parameter_reaches_the_executor() -> None:
    config, parameters = configured(
        max_beam_width="2",
        max_batch_size="5",
        max_num_tokens="99",
        max_queue_size="7",
        max_seq_len="64",
        batch_scheduler_policy="max_utilization",
        max_tokens_in_paged_kv_cache="640",
        kv_cache_host_memory_bytes="1000",
        enable_kv_cache_reuse="false",
        enable_chunked_context="0",
        normalize_log_probs="false",
        lora="true",
        lora_cache_max_adapter_size="4",
        lora_cache_host_memory_bytes="2000",
        lora_prefetch_dir="adapters",
        lookahead_window_size="4",
        lookahead_ngram_size="3",
        lookahead_verification_set_size="2",
        guided_decoding_backend="llguidance",
        intra_op_thread_count="3",
        gpt_model_type="inflight_fused_batching",
        **{"session.intra_op.allow_spinning": "0"},
    )
    assert (config.max_beam_width, config.max_batch_size, config.max_num_tokens, config.max_queue_size) == (2, 5, 99, 7)
    assert config.scheduler_config.capacity_scheduler_policy is CapacitySchedulerPolicy.MAX_UTILIZATION
    cache = config.kv_cache_config
    assert (cache.max_tokens, cache.host_cache_size, cache.enable_block_reuse) == (640, 1000, False)
    assert not config.enable_chunked_context
    assert not config.normalize_log_probs
    adapters = config.peft_cache_config
    assert adapters is not None
    assert (adapters.max_adapter_size, adapters.host_cache_size) == (4, 2000)
    assert adapters.lora_prefetch_dir == str(FOLDER / "adapters")
    assert config.decoding_config is not None
    assert config.decoding_config.lookahead_decoding_config is not None
    guidance = config.guided_decoding_config
    assert guidance is not None
    assert guidance.encoded_vocab is not None
    assert guidance.encoded_vocab[2] == "</s>"
    runner = options(config)
    assert (runner.max_seq_len, runner.threads, runner.spinning, runner.lora) == (64, 3, False, True)
    parameters.check_rest()


def test_a_draft_model_lies_beside_the_model() -> None:
    config, _ = configured(speculative_model_dir="draft", max_draft_len="5")
    speculation = config.speculative_config
    assert speculation is not None
    assert (speculation.speculative_model_dir, speculation.max_draft_len) == (FOLDER / "draft", 5)
    assert speculation.max_concurrency is None
    several, _ = configured(speculative_model_dir="draft", max_draft_concurrency="4")
    assert several.speculative_config == replace(speculation, max_draft_len=3, max_concurrency=4)


def test_guesses_from_answers_and_the_aim_between_tokens_are_the_executors() -> None:
    config, _ = configured(answer_ngrams="65536", token_gap_ms="40")
    assert (config.answer_ngrams, config.token_gap_seconds) == (65536, 0.04)
    config, _ = configured()
    assert (config.answer_ngrams, config.token_gap_seconds) == (None, None)


@pytest.mark.parametrize("key", ["answer_ngrams", "token_gap_ms", "max_draft_concurrency"])
def test_settings_of_the_executor_are_checked_when_the_model_is_loaded(key: str) -> None:
    with pytest.raises(InvalidArgumentError, match="> 0"):
        configured(**{"speculative_model_dir": "draft", key: "0"})


@pytest.mark.parametrize("key", ["speculative_model_dir", "lora_prefetch_dir"])
def test_a_path_that_leaves_the_model_is_refused(key: str) -> None:
    with pytest.raises(UnsafePathError):
        configured(**{key: "../../other"})


@pytest.mark.parametrize(
    ("values", "error"),
    [
        ({"max_batch_size": "many"}, "parameter 'max_batch_size' must be a whole number, not 'many'"),
        ({"max_batch_size": "0"}, "EngineConfig.max_batch_size must be >= 1"),
        ({"lora": "perhaps"}, "parameter 'lora' must be true or false, not 'perhaps'"),
        ({"batch_scheduler_policy": "fair"}, "must be one of max_utilization, guaranteed_no_evict, static_batch"),
        ({"guided_decoding_backend": "regexes"}, "must be one of xgrammar, llguidance, not 'regexes'"),
        ({"lookahead_ngram_size": "3"}, "lookahead_verification_set_size must be set together"),
    ],
)
def test_what_makes_no_sense_is_refused(values: dict[str, str], error: str) -> None:
    with pytest.raises(InvalidArgumentError, match=error):
        configured(**values)


def test_templates_that_were_not_filled_in_say_nothing() -> None:
    config, parameters = configured(max_beam_width="${max_beam_width}", medusa_choices="", sink_token_length="${x}")
    assert config.max_beam_width == 1
    parameters.check_rest()


def test_what_would_change_answers_and_cannot_be_followed_is_refused() -> None:
    _, parameters = configured(medusa_choices="{{0}}")
    with pytest.raises(UnsupportedError, match="parameter 'medusa_choices' is not supported: there are draft models"):
        parameters.check_rest()


def test_the_log_tells_of_parameters_that_nobody_goes_by(caplog: pytest.LogCaptureFixture) -> None:
    _, parameters = configured(
        kv_cache_free_gpu_mem_fraction="0.9", max_batchsize="4", owner="me", repoagent_convert="{}"
    )
    with caplog.at_level(logging.WARNING):
        parameters.check_rest()
    assert sorted(record.getMessage().partition("parameter ")[2] for record in caplog.records) == [
        "'kv_cache_free_gpu_mem_fraction': there is no GPU: see max_tokens_in_paged_kv_cache",
        "'max_batchsize'; did you mean 'max_batch_size'?",
        "'owner'",
    ]
