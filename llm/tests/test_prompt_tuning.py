"""Prompt tables: rows that stand in for embeddings, and the cache of prompts that have them."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    Executor,
    ExecutorConfig,
    KvCacheConfig,
    OutputConfig,
    PromptTuningConfig,
    Request,
    SamplingConfig,
)
from repoagent_llm.builder import Form, Precision

from llm.tests.conftest import results_of
from llm.tests.fake_runner import FakeRunner
from llm.tests.reference import Reference

LIMIT = timedelta(seconds=30)
VOCABULARY = 96
PROMPT = np.random.default_rng(8).integers(3, 90, 40).tolist()
NO_REUSE = KvCacheConfig(enable_block_reuse=False)
GetReference = Callable[[str], Reference]


@pytest.fixture
def runner_options() -> dict[str, Any]:
    return {"max_seq_len": 96}


def _request(prompt: list[int], table: Any = None, extra: list[int] | None = None, **options: Any) -> Request:
    output = OutputConfig(exclude_input_from_output=True, return_generation_logits=True, return_perf_metrics=True)
    tuning = None if table is None else PromptTuningConfig(table, extra)
    return Request(prompt, options.pop("tokens", 8), prompt_tuning_config=tuning, output_config=output, **options)


def _virtual(places: list[int], prompt: list[int] = PROMPT) -> list[int]:
    """The prompt with the tokens at ``places`` replaced by rows 0, 1, ... of a table."""
    changed = list(prompt)
    for row, place in enumerate(places):
        changed[place] = VOCABULARY + row
    return changed


@pytest.mark.parametrize("precision", [precision for precision in Precision if precision is not Precision.BF16])
@pytest.mark.parametrize("places", [[0, 1, 2], [39], [0, 20, 39], list(range(40))])
def test_copies_of_ordinary_embeddings_give_the_ordinary_tokens_output(
    places: list[int], precision: Precision, start: Callable[..., Executor], reference: GetReference
) -> None:
    table = reference("llama").embed([PROMPT[place] for place in places]).astype(np.float32)
    executor = start(precision=precision, config=ExecutorConfig(kv_cache_config=NO_REUSE))
    ordinary, tuned = results_of(executor, [_request(PROMPT), _request(_virtual(places), table)])
    assert tuned.output_token_ids == ordinary.output_token_ids
    atol = 2e-5 if precision is Precision.FP32 else 0.05
    np.testing.assert_allclose(tuned.generation_logits, ordinary.generation_logits, atol=atol)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("kind", ["llama", "qwen3", "gpt2"])
def test_any_rows_give_what_the_reference_gives(
    kind: str, form: Form, start: Callable[..., Executor], reference: GetReference
) -> None:
    model, places = reference(kind), [2, 3, 30]
    table = np.random.default_rng(1).standard_normal((3, 64), np.float32) * np.float32(0.3)
    embedded = model.embed(PROMPT)
    embedded[places] = table
    expected = model.logits(PROMPT, embedded)[-1]
    config = ExecutorConfig(kv_cache_config=NO_REUSE, enable_chunked_context=True, max_num_tokens=7)
    for chosen in (None, config):
        extra = [1 if token >= VOCABULARY else 0 for token in _virtual(places)]
        (result,) = results_of(start(kind, form, config=chosen), [_request(_virtual(places), table, extra, tokens=1)])
        np.testing.assert_allclose(result.generation_logits[0][0], expected, atol=2e-4)


def test_rules_over_tokens_and_beams_go_on_with_virtual_tokens(
    start: Callable[..., Executor], reference: GetReference
) -> None:
    """Virtual tokens are in the history, but have no logit that a penalty could change."""
    places = [0, 7, 9]
    table = reference("llama").embed([PROMPT[place] for place in places]).astype(np.float32)
    extra = [place + 1 if place in places else 0 for place in range(40)]
    executor = start()
    for sampling in (
        SamplingConfig(repetition_penalty=1.3, no_repeat_ngram_size=2),
        SamplingConfig(3),
        SamplingConfig(top_k=5, seed=3),
    ):
        tuned = results_of(executor, [_request(_virtual(places), table, extra, sampling_config=sampling)])[0]
        assert all(token < VOCABULARY for text in tuned.output_token_ids for token in text)
        if sampling.repetition_penalty is None:
            ordinary = results_of(executor, [_request(PROMPT, sampling_config=sampling)])[0]
            assert tuned.output_token_ids == ordinary.output_token_ids


def test_the_cache_is_reused_under_the_same_extra_ids_only(
    start: Callable[..., Executor], reference: GetReference
) -> None:
    source = np.random.default_rng(2)
    tables = [source.standard_normal((2, 64), np.float32) for _ in range(2)]
    prompt = _virtual([0, 1])
    executor = start(config=ExecutorConfig(kv_cache_config=KvCacheConfig(event_buffer_max_size=100)))
    reused, texts = [], []
    for number in (0, 1, 0, 1):
        extra = [number + 1, number + 1] + [0] * 38
        (result,) = results_of(executor, [_request(prompt, tables[number], extra)])
        assert result.request_perf_metrics is not None
        reused.append(result.request_perf_metrics.kv_cache_metrics.num_reused_blocks)
        texts.append(result.output_token_ids)
    assert reused == [0, 0, 2, 2]
    assert texts[:2] == texts[2:]
    assert texts[0] != texts[1]
    manager = executor.get_kv_cache_event_manager()
    assert manager is not None
    firsts = [event.data.blocks[0].tokens[0] for event in manager.get_latest_events() if hasattr(event.data, "blocks")]
    assert {(token.token_id, token.token_extra_id) for token in firsts} >= {(96, 1), (96, 2)}


@pytest.mark.parametrize(
    ("table", "extra", "prompt", "text"),
    [
        (np.ones((2, 64)), None, [96], "Input token extra ids must be provided when enabling kv cache reuse"),
        (np.ones((2, 64)), [1, 1], [96], r"inputTokenExtraIds vector size \(2\) must be the same as input token"),
        (np.ones((2, 63)), [1], [96], r"\[rows, 64\], the model's hidden size, not float64 \[2, 63\]"),
        (np.ones((2, 64), np.int64), [1], [96], "must be floating-point"),
        (np.full((2, 64), np.nan), [1], [96], "embedding_table holds values that are not finite"),
        (np.ones((2, 64)), [1], [98], "token id 98 in the prompt is not in the vocabulary of 96 tokens and the 2 of"),
    ],
)
def test_what_does_not_fit_is_named(
    table: Any, extra: list[int] | None, prompt: list[int], text: str, start: Callable[..., Executor]
) -> None:
    executor = start()
    (response,) = executor.await_responses(executor.enqueue_request(_request(prompt, table, extra)), LIMIT)
    with pytest.raises(RuntimeError, match=text):
        raise RuntimeError(response.error_msg)


def test_a_runner_without_embeddings_refuses_by_name() -> None:
    with Executor.from_runner(FakeRunner(vocab_size=VOCABULARY), ExecutorConfig()) as executor:
        request = _request([96], np.ones((1, 4)), [1])
        (response,) = executor.await_responses(executor.enqueue_request(request), LIMIT)
    assert "Request.prompt_tuning_config is not supported" in response.error_msg
