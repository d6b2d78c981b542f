"""The executor's tokens and scores equal transformers', one at a time and all at once."""

import math
import random
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    KvCacheConfig,
    OutputConfig,
    PromptTuningConfig,
    Request,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.builder import Form
from repoagent_llm.engine import scheduler
from repoagent_llm.executor import Executor
from repoagent_llm.runner.ort import OrtRunner

from llm.tests.conftest import results_of
from llm.tests.lora_sample import SampleAdapter
from llm.tests.reference import Reference
from tests.extent import in_full

KINDS = ["llama", "mistral", "qwen2", "qwen3", "gpt2"]
DRAWS = 300


def _new_tokens(exclude: bool = True) -> OutputConfig:
    return OutputConfig(exclude_input_from_output=exclude, return_log_probs=True)


@pytest.mark.parametrize("form", list(Form))
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_search(kind: str, form: Form, oracle: dict[str, Any], start: Callable[..., Executor]) -> None:
    executor, entry = start(kind, form), oracle["models"][kind]
    requests = [
        Request(prompt, oracle["new_tokens"], end_id=oracle["end_id"], output_config=_new_tokens())
        for prompt in oracle["prompts"]
    ]
    together = [result.output_token_ids[0] for result in results_of(executor, requests)]
    alone = [results_of(executor, [request])[0].output_token_ids[0] for request in requests]
    assert together == alone == entry["greedy"]


@pytest.mark.parametrize("kind", KINDS)
def test_penalties_and_bans(kind: str, oracle: dict[str, Any], start: Callable[..., Executor]) -> None:
    executor, entries = start(kind), oracle["models"][kind]["penalised"]
    requests = []
    for entry in entries:
        options = dict(entry["options"])
        bad_words = options.pop("bad_words_ids", None)
        minimum = options.pop("min_new_tokens", None)
        sampling = SamplingConfig(min_tokens=minimum, **options)
        requests.append(
            Request(
                entry["prompt"],
                oracle["new_tokens"],
                end_id=oracle["end_id"],
                sampling_config=sampling,
                bad_words=bad_words,
                output_config=_new_tokens(),
            )
        )
    found = [result.output_token_ids[0] for result in results_of(executor, requests)]
    assert found == [entry["tokens"] for entry in entries]


@pytest.mark.slow
@pytest.mark.parametrize("kind", in_full(KINDS, otherwise=["llama"]))  # Drawing is the same for all.
def test_sampled_tokens_come_as_often(kind: str, oracle: dict[str, Any], start: Callable[..., Executor]) -> None:
    """The seeds are fixed, so the frequencies are too: the test cannot fail by chance."""
    executor = start(kind)
    for entry in oracle["models"][kind]["drawn"]:
        options: dict[str, Any] = {key: value or None for key, value in entry["options"].items()}
        samples = [SamplingConfig(seed=seed, **options) for seed in range(DRAWS)]
        requests = [Request(entry["prompt"], 1, sampling_config=s, output_config=_new_tokens()) for s in samples]
        found = Counter(result.output_token_ids[0][0] for result in results_of(executor, requests))
        expected = {int(token): chance for token, chance in entry["probabilities"].items()}
        assert found.keys() <= expected.keys()
        for token, chance in expected.items():
            # Four standard deviations, and one token: some chances are too small for their frequencies to be normal.
            assert abs(found[token] - DRAWS * chance) <= 4 * math.sqrt(DRAWS * chance * (1 - chance)) + 1


@pytest.mark.slow
@pytest.mark.parametrize("form", [Form.GQA, Form.PAGED])
@pytest.mark.parametrize("kind", KINDS)
def test_beam_search(kind: str, form: Form, oracle: dict[str, Any], start: Callable[..., Executor]) -> None:
    executor, entries = start(kind, form), oracle["models"][kind]["beams"]
    early = {True: 1, False: 0, "never": 2}
    requests = [
        Request(
            entry["prompt"],
            oracle["new_tokens"],
            end_id=oracle["end_id"],
            sampling_config=SamplingConfig(
                entry["options"]["num_beams"],
                length_penalty=entry["options"]["length_penalty"],
                early_stopping=early[entry["options"]["early_stopping"]],
            ),
            output_config=_new_tokens(),
        )
        for entry in entries
    ]
    for entry, result in zip(entries, results_of(executor, requests), strict=True):
        assert result.output_token_ids == entry["tokens"], entry["options"]
        assert result.cum_log_probs == pytest.approx(entry["scores"], abs=2e-4)


# Requests of different beam widths: one that cannot run beside the others does not hold up those behind it.

WIDEST = timedelta(seconds=60)


def _scheduled(executor: Executor) -> int:
    found = [stats.inflight_batching_stats for stats in executor.get_latest_iteration_stats()]
    return max((item.num_scheduled_requests for item in found if item is not None), default=0)


def test_requests_behind_one_of_another_width_run_together(open_runner: Callable[..., OrtRunner]) -> None:
    runner = open_runner("llama", max_sequences=8)
    with Executor.from_runner(runner, ExecutorConfig(max_beam_width=2)) as executor:
        requests = [Request([5, 9, 17], 40) for _ in range(6)]
        requests.insert(1, Request([5, 9, 17], 40, sampling_config=SamplingConfig(2)))
        ids = executor.enqueue_requests(requests)
        order: list[int] = []
        running = 0
        while len(order) < len(ids):
            order += [response.request_id for response in executor.await_responses(WIDEST)]
            running = max(running, _scheduled(executor))
        assert running == 6
        assert order[-1] == ids[1]


def test_one_of_another_width_runs_although_others_keep_coming(open_runner: Callable[..., OrtRunner]) -> None:
    """Two at a time, so that some are always running; only a limit on overtaking lets the beams begin."""
    runner = open_runner("llama", max_sequences=4)
    with Executor.from_runner(runner, ExecutorConfig(max_beam_width=2, max_batch_size=2)) as executor:
        count = 3 * scheduler._MOST_PASSING
        requests = [Request([5, 9, 17], 4 + number % 3) for number in range(count)]
        requests.insert(2, Request([5, 9, 17], 5, sampling_config=SamplingConfig(2)))
        ids = executor.enqueue_requests(requests)
        order: list[int] = []
        while len(order) < len(ids):
            order += [response.request_id for response in executor.await_responses(WIDEST)]
        assert scheduler._MOST_PASSING <= order.index(ids[2]) <= scheduler._MOST_PASSING + 4


# Requests of every kind at once on a real runner: each says what it says alone.

VOCABULARY = 96
TABLE = np.random.default_rng(0).standard_normal((4, 64), np.float32) * np.float32(0.5)
CONFIGS = {
    "together": ExecutorConfig(max_beam_width=2),
    "chunked": ExecutorConfig(max_beam_width=2, enable_chunked_context=True, max_num_tokens=17),
    "paused": ExecutorConfig(
        max_beam_width=2,
        max_num_tokens=300,
        scheduler_config=SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
        kv_cache_config=KvCacheConfig(max_tokens=320),
    ),
}


def _request(chance: random.Random, adapters: list[SampleAdapter]) -> Request:
    """Perhaps with a shared prefix, an adapter, a prompt table; beams, drawn tokens, drafts or none of these."""
    prompt = [chance.randrange(3, VOCABULARY) for _ in range(chance.randint(1, 60))]
    if chance.random() < 0.4:
        prompt = [7] * 36 + prompt[:20]
    options: dict[str, Any] = {}
    if chance.random() < 0.5:
        number = chance.randrange(len(adapters))
        options["lora_config"] = adapters[number].config(number)
    if chance.random() < 0.3:
        prompt[chance.randrange(len(prompt))] = VOCABULARY + chance.randrange(len(TABLE))
        extra = [int(token >= VOCABULARY) for token in prompt]
        options["prompt_tuning_config"] = PromptTuningConfig(TABLE, extra)
    kind = chance.random()
    if kind < 0.3:
        options["sampling_config"] = SamplingConfig(beam_width_array=chance.choice([[1, 2], [2, 1], [2, 2]]))
    elif kind < 0.5:
        options["sampling_config"] = SamplingConfig(top_k=4, seed=chance.randrange(9), repetition_penalty=1.2)
    elif kind < 0.6:
        options["external_draft_tokens_config"] = ExternalDraftTokensConfig([5, 6])
    return Request(prompt, chance.randint(1, 16), end_id=2, **options)


@pytest.mark.slow
@pytest.mark.parametrize("form", list(Form))
def test_a_mixture_of_everything(
    form: Form, open_runner: Callable[..., OrtRunner], reference: Callable[[str], Reference]
) -> None:
    chance, model = random.Random(1), reference("llama")
    adapters = [SampleAdapter(model, seed, rank=1 + seed) for seed in range(3)]
    requests = [_request(chance, adapters) for _ in range(24)]

    def texts(config: ExecutorConfig, groups: list[list[Request]]) -> list[list[list[int]]]:
        found = []
        runner = open_runner("llama", form, lora=True, max_sequences=8, max_seq_len=100)
        with Executor.from_runner(runner, config) as executor:
            for group in groups:
                answers = executor.await_responses(executor.enqueue_requests(group), timedelta(seconds=60))
                found += [responses[0].result.output_token_ids for responses in answers]
            assert executor._assembly.budget.used == 0
        return found

    no_reuse = ExecutorConfig(max_beam_width=2, kv_cache_config=KvCacheConfig(enable_block_reuse=False))
    alone = texts(no_reuse, [[request] for request in requests])
    for name, config in CONFIGS.items():
        assert texts(config, [requests]) == alone, name
