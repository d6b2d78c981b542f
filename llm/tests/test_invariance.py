"""What happens around a request does not change its output: neighbours, chunks, reuse, pauses."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    ContextChunkingPolicy,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    KvCacheConfig,
    LoraConfig,
    OutputConfig,
    Request,
    Result,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.builder import Precision
from repoagent_llm.runner.ort import OrtRunner
from repoagent_llm.runner.protocol import LoraShape, ModelRunner

from llm.tests.fake_runner import FakeRunner

LIMIT = timedelta(seconds=120)
MakeRunner = Callable[[], ModelRunner]
NO_REUSE = KvCacheConfig(enable_block_reuse=False)


@pytest.fixture(params=["fake", "gqa", "gqa-int8"])
def make_runner(request: pytest.FixtureRequest, open_runner: Callable[..., OrtRunner]) -> MakeRunner:
    if request.param == "fake":
        return lambda: FakeRunner(vocab_size=96, max_seq_len=160, max_sequences=8)
    precision = Precision.INT8 if request.param == "gqa-int8" else Precision.FP32
    return lambda: open_runner("llama", precision=precision, max_sequences=8, max_seq_len=160)


@pytest.fixture
def run(make_runner: MakeRunner) -> Callable[..., list[list[Result]]]:
    """``run(config, requests, one_by_one)``: the results of each request."""

    def run(config: ExecutorConfig, requests: list[Request], one_by_one: bool = False) -> list[list[Result]]:
        with Executor.from_runner(make_runner(), config) as executor:
            groups = [[request] for request in requests] if one_by_one else [requests]
            results = [result for group in groups for result in _answers(executor, group)]
            assert executor._assembly.budget.used == 0
            return results

    return run


def _answers(executor: Executor, requests: list[Request]) -> list[list[Result]]:
    ids = executor.enqueue_requests(requests)
    found: dict[int, list[Result]] = {request_id: [] for request_id in ids}
    open_ids = set(ids)
    while open_ids:
        for response in executor.await_responses(LIMIT):
            found[response.request_id].append(response.result)
            if response.result.is_final:
                open_ids.remove(response.request_id)
    return list(found.values())


def _mixture() -> list[Request]:
    """Requests of many kinds, of different lengths."""
    source = np.random.default_rng(5)
    prompts = [source.integers(0, 96, size).tolist() for size in (3, 30, 17, 1, 60, 29, 31, 70)]
    samplings = [
        SamplingConfig(),
        SamplingConfig(top_k=20, seed=4, temperature=2.0),
        SamplingConfig(top_p=0.95, seed=9, temperature=3.0),
        SamplingConfig(top_p=0.9, seed=1, num_return_sequences=2, temperature=2.0),
        SamplingConfig(repetition_penalty=1.5),
        SamplingConfig(top_p=0.8, top_p_decay=0.9, top_p_min=0.1, top_p_reset_ids=5, seed=2),
        SamplingConfig(no_repeat_ngram_size=2, min_p=0.01, seed=8, temperature=4.0),
        SamplingConfig(presence_penalty=0.5, frequency_penalty=0.3),
    ]
    output = OutputConfig(return_log_probs=True)
    return [
        Request(prompt, 12 + number, sampling_config=sampling, output_config=output, streaming=number % 3 == 0)
        for number, (prompt, sampling) in enumerate(zip(prompts, samplings, strict=True))
    ]


def _tokens(results: list[list[Result]]) -> list[list[tuple[int, list[list[int]]]]]:
    return [[(result.sequence_index, result.output_token_ids) for result in group] for group in results]


@pytest.fixture
def alone(run: Callable[..., Any]) -> Any:
    """The tokens of each request with the machine to itself."""
    return _tokens(run(ExecutorConfig(kv_cache_config=NO_REUSE), _mixture(), True))


def _by_sequence(groups: Any) -> Any:
    """Sequences of one request may end in any order."""
    return [sorted(group, key=lambda item: item[0]) if len({i for i, _ in group}) > 1 else group for group in groups]


def test_neighbours_do_not_matter(run: Callable[..., Any], alone: Any) -> None:
    assert _by_sequence(_tokens(run(ExecutorConfig(kv_cache_config=NO_REUSE), _mixture()))) == _by_sequence(alone)


@pytest.mark.slow
@pytest.mark.parametrize("policy", list(ContextChunkingPolicy))
@pytest.mark.parametrize("budget", [9, 40])
def test_reading_a_prompt_in_chunks_does_not_matter(
    run: Callable[..., Any], alone: Any, policy: ContextChunkingPolicy, budget: int
) -> None:
    config = ExecutorConfig(
        enable_chunked_context=True,
        max_num_tokens=budget,
        kv_cache_config=NO_REUSE,
        scheduler_config=SchedulerConfig(context_chunking_policy=policy),
    )
    assert _by_sequence(_tokens(run(config, _mixture()))) == _by_sequence(alone)


@pytest.mark.slow
def test_reusing_the_cache_does_not_matter(run: Callable[..., Any], alone: Any) -> None:
    twice = run(ExecutorConfig(), _mixture() + _mixture(), True)
    assert _tokens(twice[:8]) == alone
    assert _tokens(twice[8:]) == alone


def test_pausing_does_not_matter(make_runner: MakeRunner, alone: Any) -> None:
    scheduling = SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION)
    for reuse in (True, False):
        cache = KvCacheConfig(max_tokens=160, enable_block_reuse=reuse)
        config = ExecutorConfig(scheduler_config=scheduling, kv_cache_config=cache)
        with Executor.from_runner(make_runner(), config) as executor:
            results = _answers(executor, _mixture())
            stats = executor.get_latest_iteration_stats()
        paused = sum(item.inflight_batching_stats.num_paused_requests for item in stats if item.inflight_batching_stats)
        assert paused > 0
        assert _by_sequence(_tokens(results)) == _by_sequence(alone)


@pytest.mark.parametrize("widths", [None, [2, 1, 2]])
def test_beams_are_the_same_in_company_and_after_pauses(make_runner: MakeRunner, widths: list[int] | None) -> None:
    source = np.random.default_rng(6)
    prompts = [source.integers(0, 96, size).tolist() for size in (20, 5, 31)]
    sampling = SamplingConfig(2, length_penalty=1.0, early_stopping=0, beam_width_array=widths)

    def requests() -> list[Request]:
        output = OutputConfig(return_log_probs=True)
        return [Request(prompt, 30, end_id=2, sampling_config=sampling, output_config=output) for prompt in prompts]

    def results(config: ExecutorConfig, one_by_one: bool) -> tuple[list[Result], int]:
        with Executor.from_runner(make_runner(), config) as executor:
            groups = [[request] for request in requests()] if one_by_one else [requests()]
            found = [result[0] for group in groups for result in _answers(executor, group)]
            stats = executor.get_latest_iteration_stats()
            return found, sum(
                item.inflight_batching_stats.num_paused_requests for item in stats if item.inflight_batching_stats
            )

    expected, _ = results(ExecutorConfig(max_beam_width=2, kv_cache_config=NO_REUSE), True)
    together, _ = results(ExecutorConfig(max_beam_width=2), False)
    scheduling = SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION)
    tight = ExecutorConfig(max_beam_width=2, scheduler_config=scheduling, kv_cache_config=KvCacheConfig(max_tokens=256))
    paused, pauses = results(tight, False)
    assert pauses > 0
    for found in (together, paused):
        for result, wanted in zip(found, expected, strict=True):
            assert result.output_token_ids == wanted.output_token_ids
            assert result.cum_log_probs == pytest.approx(wanted.cum_log_probs, abs=1e-3)


def test_drafts_do_not_change_what_is_said(run: Callable[..., Any]) -> None:
    prompt = [5, 9, 17]
    (plain,) = run(ExecutorConfig(), [Request(prompt, 12)])
    whole = plain[0].output_token_ids[0]
    said = whole[3:]
    # (drafts, how many are right); one token more comes from the model, as long as there is room.
    for drafts, right in ((said[:6], 6), ([*said[:3], 1, 1], 3), ([0, 0], 0), (said, 11)):
        config = ExternalDraftTokensConfig(drafts)
        (found,) = run(ExecutorConfig(), [Request(prompt, 12, external_draft_tokens_config=config)])
        assert found[0].output_token_ids == [whole[: 3 + right + 1]]


def test_whoever_drafts_goes_on_with_what_was_kept(make_runner: MakeRunner) -> None:
    prompt = [5, 9, 17]
    output = OutputConfig(return_perf_metrics=True)
    with Executor.from_runner(make_runner(), ExecutorConfig()) as executor:
        (plain,) = _answers(executor, [Request(prompt, 90)])
        whole, text, reused = plain[0].output_token_ids[0], prompt, []
        while len(text) < len(whole):
            drafts = ExternalDraftTokensConfig([*whole[len(text) : len(text) + 3], 0])
            room = len(whole) - len(text)
            request = Request(text, room, external_draft_tokens_config=drafts, output_config=output)
            ((result,),) = _answers(executor, [request])
            text = result.output_token_ids[0]
            assert result.request_perf_metrics is not None
            reused.append(result.request_perf_metrics.kv_cache_metrics.num_reused_blocks)
        assert executor._assembly.budget.used == 0
    assert text == whole
    assert reused[-1] == 3


def test_salts_keep_caches_apart_without_changing_the_output(run: Callable[..., Any]) -> None:
    prompt = list(range(1, 50))
    output = OutputConfig(return_perf_metrics=True)
    requests = [Request(prompt, 4, cache_salt_id=salt, output_config=output) for salt in (None, 1, 1, None, 2)]
    results = [group[0] for group in run(ExecutorConfig(), requests, True)]
    reused = [result.request_perf_metrics.kv_cache_metrics.num_reused_blocks for result in results]
    assert reused == [0, 0, 2, 2, 0]
    assert len({tuple(result.output_token_ids[0]) for result in results}) == 1


def _adapted(prompt: list[int], task_id: int | None) -> Request:
    lora = None
    if task_id is not None:
        lora = LoraConfig(task_id, np.full((1, 8), task_id, np.float32), np.array([[4, 0, 1]], np.int32))
    return Request(prompt, 20, end_id=2, lora_config=lora)


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
def test_adapters_do_not_mix_in_company_after_pauses_or_through_the_cache(policy: CapacitySchedulerPolicy) -> None:
    """The fake model's tokens depend on the adapter under which each earlier one was computed."""
    source = np.random.default_rng(9)
    shared = source.integers(3, 96, 40).tolist()
    requests = [
        _adapted([*shared, *source.integers(3, 96, 5).tolist()], task_id)
        for task_id in (None, 1, 2, 1, None, 2, 1, None)
    ]

    def answers(config: ExecutorConfig, groups: list[list[Request]]) -> Any:
        runner = FakeRunner(
            vocab_size=96, max_seq_len=160, max_sequences=4, lora=LoraShape(1, 2, {"layers.0.attention_out": (4, 4)})
        )
        with Executor.from_runner(runner, config) as executor:
            found = _tokens([result for group in groups for result in _answers(executor, group)])
            assert executor._assembly.adapters is not None
            assert executor._assembly.adapters.in_use == 0
        return found

    alone = answers(ExecutorConfig(kv_cache_config=NO_REUSE), [[request] for request in requests])
    cache = KvCacheConfig(max_tokens=224)
    config = ExecutorConfig(
        scheduler_config=SchedulerConfig(policy),
        kv_cache_config=cache,
        enable_chunked_context=True,
        max_num_tokens=24,
    )
    assert answers(config, [requests, requests]) == alone + alone
