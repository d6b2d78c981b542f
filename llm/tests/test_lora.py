"""LoRA in the executor: an adapter gives what its merged weights give, whoever shares the batch."""

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    KvCacheConfig,
    LoraConfig,
    OutputConfig,
    PeftCacheConfig,
    Request,
    Result,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.builder import Form, Precision
from repoagent_llm.builder.products import dequantize, quantize
from repoagent_llm.runner.ort import OrtRunner

from llm.tests.conftest import results_of
from llm.tests.lora_sample import SampleAdapter
from llm.tests.reference import Reference

LIMIT = timedelta(seconds=30)
PROMPT = np.random.default_rng(3).integers(3, 90, 40).tolist()
ROOM_FOR_ONE = 60_000  # bytes; SampleAdapter(model, seed) of the llama shape takes about 50 000
GetReference = Callable[[str], Reference]


@pytest.fixture
def runner_options() -> dict[str, Any]:
    return {"lora": True, "max_seq_len": 96}


def _request(lora: LoraConfig | None, prompt: list[int] = PROMPT, tokens: int = 8, **options: Any) -> Request:
    output = OutputConfig(exclude_input_from_output=True, return_generation_logits=True, return_perf_metrics=True)
    return Request(prompt, tokens, lora_config=lora, output_config=output, **options)


def _tokens(results: list[Result]) -> list[list[int]]:
    return [result.output_token_ids[0] for result in results]


@pytest.mark.slow
@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gpt2"])
def test_adapters_of_a_batch_give_what_their_merged_weights_give(
    kind: str, form: Form, start: Callable[..., Executor], reference: GetReference, checkpoint: Callable[[str], Path]
) -> None:
    model, executor = reference(kind), start(kind, form)
    adapters = [SampleAdapter(model, 1), SampleAdapter(model, 2, rank=1, modules=(4, 6))]
    merged = [model, *(Reference(checkpoint(kind), adapter.merged()) for adapter in adapters)]
    loras = [None, adapters[0].config(10), adapters[1].config(11)]
    prompts = [PROMPT[:9], PROMPT[:21], PROMPT[:14]]
    expected = [one.greedy(prompt, 8) for one, prompt in zip(merged, prompts, strict=True)]
    assert expected[1] != model.greedy(prompts[1], 8)
    assert expected[2] != model.greedy(prompts[2], 8)
    results = results_of(executor, [_request(lora, prompt) for lora, prompt in zip(loras, prompts, strict=True)])
    assert _tokens(results) == expected
    for one, prompt, result in zip(merged, prompts, results, strict=True):
        wanted = one.logits(prompt + result.output_token_ids[0][:-1])[len(prompt) - 1 :]
        np.testing.assert_allclose(result.generation_logits[0], wanted, atol=5e-4)


def test_a_row_without_an_adapter_is_not_changed_by_its_neighbours(
    start: Callable[..., Executor], reference: GetReference, open_runner: Callable[..., OrtRunner]
) -> None:
    adapter = SampleAdapter(reference("llama"), 1).config(7)
    together = results_of(start(), [_request(adapter), _request(None), _request(adapter, PROMPT[5:])])[1]
    with Executor.from_runner(open_runner("llama", max_seq_len=96), ExecutorConfig()) as plain:
        (alone,) = results_of(plain, [_request(None)])
    assert together.output_token_ids == alone.output_token_ids
    np.testing.assert_allclose(together.generation_logits, alone.generation_logits, atol=2e-5)


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8, Precision.INT4])
def test_adapters_work_beside_weights_of_other_precisions(
    precision: Precision,
    open_runner: Callable[..., OrtRunner],
    reference: GetReference,
    checkpoint: Callable[[str], Path],
) -> None:
    """Rounding shifts the logits with and without an adapter; the change that the adapter makes stays."""
    exact = reference("llama")
    rounded = {
        name: dequantize(*quantize(np.asarray(weight, np.float32)), weight.shape[1]).astype(np.float64)
        for name, weight in exact.tensors.items()
        if precision is Precision.INT4 and weight.ndim == 2 and "embed" not in name
    }
    model = Reference(checkpoint("llama"), rounded)
    adapter = SampleAdapter(model, 5, modules=(1, 4, 6))
    expected = Reference(checkpoint("llama"), {**rounded, **adapter.merged()}).logits(PROMPT)[-1]
    runner = open_runner("llama", precision=precision, lora=True, max_seq_len=96)
    with Executor.from_runner(runner, ExecutorConfig()) as executor:
        (result,) = results_of(executor, [_request(adapter.config(1))])
    assert np.corrcoef(expected, model.logits(PROMPT)[-1])[0, 1] < 0.8
    assert np.corrcoef(expected, result.generation_logits[0][0])[0, 1] > 0.99


def test_beams_and_several_sequences_keep_their_adapter(
    start: Callable[..., Executor], reference: GetReference, checkpoint: Callable[[str], Path]
) -> None:
    adapter = SampleAdapter(reference("llama"), 1)
    merged = Reference(checkpoint("llama"), adapter.merged())
    executor = start()
    (beams,) = results_of(executor, [_request(adapter.config(1), PROMPT[:10], 5, sampling_config=SamplingConfig(3))])
    assert beams.output_token_ids == [text for text, _ in merged.beams(PROMPT[:10], 5, [3])]
    request = _request(LoraConfig(1), PROMPT[:10], 5, sampling_config=SamplingConfig(num_return_sequences=2))
    request_id = executor.enqueue_request(request)
    texts: list[list[int]] = []
    while len(texts) < 2:
        texts += [response.result.output_token_ids[0] for response in executor.await_responses(request_id, LIMIT)]
    assert texts == [merged.greedy(PROMPT[:10], 5)] * 2


def test_rows_take_their_adapters_along_when_they_move(
    start: Callable[..., Executor], reference: GetReference, checkpoint: Callable[[str], Path]
) -> None:
    """Short requests end first, so the rows of the long ones fill their holes again and again."""
    model = reference("llama")
    samples = [SampleAdapter(model, seed, rank=seed) for seed in (1, 2, 3)]
    merged = [model, *(Reference(checkpoint("llama"), sample.merged()) for sample in samples)]
    loras = [None, *(sample.config(number) for number, sample in enumerate(samples))]
    lengths = [2, 9, 3, 7, 4, 8, 5, 10, 6]
    requests = [_request(loras[i % 4], PROMPT[i : i + 12], tokens) for i, tokens in enumerate(lengths)]
    found = _tokens(results_of(start(), requests))
    assert found == [merged[i % 4].greedy(PROMPT[i : i + 12], tokens) for i, tokens in enumerate(lengths)]


def test_a_prefix_is_reused_under_its_adapter_only(start: Callable[..., Executor], reference: GetReference) -> None:
    executor = start(config=ExecutorConfig(kv_cache_config=KvCacheConfig(event_buffer_max_size=100)))
    first, second = (SampleAdapter(reference("llama"), seed).config(seed) for seed in (1, 2))
    reused = []
    for lora in (None, first, LoraConfig(1), second, None, LoraConfig(2), first):
        metrics = results_of(executor, [_request(lora)])[0].request_perf_metrics
        assert metrics is not None
        reused.append(metrics.kv_cache_metrics.num_reused_blocks)
    assert reused == [0, 0, 2, 0, 2, 2, 2]
    manager = executor.get_kv_cache_event_manager()
    assert manager is not None
    stored = [block for event in manager.get_latest_events() for block in getattr(event.data, "blocks", [])]
    assert {block.lora_id for block in stored} == {None, 1, 2}


def test_another_adapter_under_an_old_task_id_does_not_get_the_old_ones_cache(
    start: Callable[..., Executor], reference: GetReference, checkpoint: Callable[[str], Path]
) -> None:
    samples = [SampleAdapter(reference("llama"), seed) for seed in (1, 2, 3)]
    executor = start(config=ExecutorConfig(peft_cache_config=PeftCacheConfig(host_cache_size=ROOM_FOR_ONE)))
    results_of(executor, [_request(samples[0].config(5))])
    results_of(executor, [_request(samples[1].config(6))])  # the cache holds one: task 5 goes
    (found,) = results_of(executor, [_request(samples[2].config(5))])
    assert found.output_token_ids[0] == Reference(checkpoint("llama"), samples[2].merged()).greedy(PROMPT, 8)


def test_paused_requests_come_back_with_their_adapters(
    start: Callable[..., Executor], reference: GetReference, checkpoint: Callable[[str], Path]
) -> None:
    adapter = SampleAdapter(reference("llama"), 1)
    config = ExecutorConfig(
        scheduler_config=SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
        kv_cache_config=KvCacheConfig(max_tokens=96, enable_block_reuse=False),
    )
    executor = start(config=config)
    lora = adapter.config(1)
    results = results_of(executor, [_request(lora, PROMPT[:20], 40), _request(lora, PROMPT[:28], 36)])
    stats = [item.inflight_batching_stats for item in executor.get_latest_iteration_stats()]
    assert sum(item.num_paused_requests for item in stats if item) > 0
    merged = Reference(checkpoint("llama"), adapter.merged())
    assert _tokens(results) == [merged.greedy(PROMPT[:20], 40), merged.greedy(PROMPT[:28], 36)]


def _error(executor: Executor, request: Request) -> str:
    return executor.await_responses(executor.enqueue_request(request), LIMIT)[0].error_msg


def test_an_unknown_task_and_a_model_without_adapters_are_named(
    start: Callable[..., Executor], open_runner: Callable[..., OrtRunner], reference: GetReference
) -> None:
    executor = start()
    text = "LoRA task 10 not found in cache. Please send LoRA weights with request"
    assert _error(executor, _request(LoraConfig(10))) == text
    lora = SampleAdapter(reference("llama"), 1).config(10)
    known = results_of(executor, [_request(lora), _request(LoraConfig(10))])
    assert known[0].output_token_ids == known[1].output_token_ids
    with Executor.from_runner(open_runner("llama"), ExecutorConfig()) as plain:
        assert "lora=True" in _error(plain, _request(lora))


def test_tasks_in_use_stay_and_ended_requests_let_go(start: Callable[..., Executor], reference: GetReference) -> None:
    """A cache for one adapter: the second is refused while the first is used, and taken afterwards."""
    samples = [SampleAdapter(reference("llama"), seed) for seed in (1, 2)]
    config = ExecutorConfig(peft_cache_config=PeftCacheConfig(host_cache_size=ROOM_FOR_ONE))
    executor = start(config=config)
    first, second = (sample.config(number) for number, sample in enumerate(samples))
    refused = executor.enqueue_requests([_request(first, tokens=40), _request(second)])
    long, error = executor.await_responses(refused, LIMIT)
    assert "PEFT Cache is full. Could not store taskId=1" in error[0].error_msg
    assert not long[0].has_error()
    for lora in (second, first, second):
        assert not executor.await_responses(executor.enqueue_request(_request(lora)), LIMIT)[0].has_error()
    cancelled = executor.enqueue_request(_request(first, tokens=50))
    executor.cancel_request(cancelled)
    executor.await_responses(cancelled, LIMIT)
    assert not executor.await_responses(executor.enqueue_request(_request(second)), LIMIT)[0].has_error()


def test_a_refused_request_keeps_no_adapter_in_use(start: Callable[..., Executor], reference: GetReference) -> None:
    """Also when the fault is one of those that are looked for last."""
    first, second = (SampleAdapter(reference("llama"), seed).config(seed) for seed in (1, 2))
    executor = start(config=ExecutorConfig(peft_cache_config=PeftCacheConfig(host_cache_size=ROOM_FOR_ONE)))
    faulty = _request(first)
    vars(faulty)["top_log_probs"] = -1
    assert "top_log_probs must be" in _error(executor, faulty)
    assert not executor.await_responses(executor.enqueue_request(_request(second)), LIMIT)[0].has_error()
