"""The executor's tokens and scores equal transformers', one at a time and all at once."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from repoagent_llm import ExecutorConfig, OutputConfig, Request, Result, SamplingConfig
from repoagent_llm.builder import Form
from repoagent_llm.executor import Executor
from repoagent_llm.runner.ort import OrtRunner

from tests.extent import in_full

KINDS = ["llama", "mistral", "qwen2", "qwen3", "gpt2"]
LIMIT = timedelta(seconds=120)
DRAWS = 300


@pytest.fixture
def start(open_runner: Callable[..., OrtRunner]) -> Iterator[Callable[..., Executor]]:
    """``start(kind, form, config)``: an executor over a small model, shut down at the end."""
    started: list[Executor] = []

    def make(kind: str, form: Form = Form.GQA, config: ExecutorConfig | None = None) -> Executor:
        runner = open_runner(kind, form, max_sequences=8)
        started.append(Executor.from_runner(runner, config or ExecutorConfig(max_beam_width=4)))
        return started[-1]

    yield make
    for executor in started:
        executor.shutdown()


def _results(executor: Executor, requests: list[Request]) -> list[Result]:
    """The one response of each request."""
    ids = executor.enqueue_requests(requests)
    return [responses[0].result for responses in executor.await_responses(ids, LIMIT)]


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
    together = [result.output_token_ids[0] for result in _results(executor, requests)]
    alone = [_results(executor, [request])[0].output_token_ids[0] for request in requests]
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
    found = [result.output_token_ids[0] for result in _results(executor, requests)]
    assert found == [entry["tokens"] for entry in entries]


@pytest.mark.slow
@pytest.mark.parametrize("kind", in_full(KINDS, otherwise=["llama", "gpt2"]))  # Drawing is the same for all.
def test_sampled_tokens_come_as_often(kind: str, oracle: dict[str, Any], start: Callable[..., Executor]) -> None:
    """The seeds are fixed, so the frequencies are too: the test cannot fail by chance."""
    executor = start(kind)
    for entry in oracle["models"][kind]["drawn"]:
        options: dict[str, Any] = {key: value or None for key, value in entry["options"].items()}
        samples = [SamplingConfig(seed=seed, **options) for seed in range(DRAWS)]
        requests = [Request(entry["prompt"], 1, sampling_config=s, output_config=_new_tokens()) for s in samples]
        found = Counter(result.output_token_ids[0][0] for result in _results(executor, requests))
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
    for entry, result in zip(entries, _results(executor, requests), strict=True):
        assert result.output_token_ids == entry["tokens"], entry["options"]
        assert result.cum_log_probs == pytest.approx(entry["scores"], abs=2e-4)
