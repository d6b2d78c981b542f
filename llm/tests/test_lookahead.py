"""Lookahead decoding: the same text as without it, in fewer steps."""

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    DecodingConfig,
    Executor,
    ExecutorConfig,
    LookaheadDecodingConfig,
    OutputConfig,
    Request,
    Result,
    SamplingConfig,
)
from repoagent_llm.runner.paged import PackedStep, PagedRunner
from repoagent_llm.runner.protocol import DecodeRound, Segment
from repoagent_llm.types.executor_errors import CheckError

from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import FakeRunner, hashed_logits, table_logits

LIMIT = timedelta(seconds=120)
SIZES = LookaheadDecodingConfig(4, 4, 4)
# 1, 2, 3, 4, 5 and so on, again and again: after one round every n-gram is known.
ROUND = {1: 2, 2: 3, 3: 4, 4: 5, 5: 1}


def _config(sizes: LookaheadDecodingConfig | None = SIZES, **options: Any) -> ExecutorConfig:
    return ExecutorConfig(decoding_config=DecodingConfig(lookahead_decoding_config=sizes), **options)


def test_on_pages_one_run_verifies_the_guesses_of_all_requests() -> None:
    steps: list[int] = []

    def note(step: PackedStep) -> None:
        steps.append(len(step.tokens) - len(step.past))

    model = FakePacked(60, vocab_size=32, max_seq_len=256, max_sequences=9, logits=table_logits(ROUND, 32))
    model._before_run = note
    runner = PagedRunner(model)
    requests = [Request([1, 2, 3 + number % 3], 60) for number in range(8)]
    with Executor.from_runner(runner, _config()) as executor:
        executor._assembly.engine._cost.note = lambda tokens, seconds: None  # type: ignore[method-assign]
        ids = executor.enqueue_requests(requests)
        texts = [responses[0].result.output_token_ids[0] for responses in executor.await_responses(ids, LIMIT)]
    assert all(text[-5:] in [[(start + i) % 5 + 1 for i in range(5)] for start in range(5)] for text in texts)
    assert len(steps) < 48  # 60 without guesses
    assert max(steps[1:]) > 3  # of several requests in one run
    assert runner.pool.busy == 0


class Steps:
    """Counts a runner's steps, and the longest piece of one after the first."""

    def __init__(self) -> None:
        self.count, self.longest = 0, 0

    def __call__(self, segments: Sequence[Segment]) -> None:
        self.count += 1
        if self.count > 1:
            self.longest = max(self.longest, *(len(segment.tokens) for segment in segments))


@pytest.fixture
def steps() -> Steps:
    return Steps()


def _run(config: ExecutorConfig, logits: Callable[[list[int]], Any], *requests: Request, **runner: Any) -> list[Result]:
    """The last response of each request."""
    made = FakeRunner(logits=logits, max_seq_len=256, **runner)
    with Executor.from_runner(made, config) as executor:
        ids = executor.enqueue_requests(list(requests))
        found: dict[int, Result] = {}
        while len(found) < len(ids):
            for response in executor.await_responses(LIMIT):
                assert not response.has_error(), response.error_msg
                if response.result.is_final:
                    found[response.request_id] = response.result
        return [found[request_id] for request_id in ids]


def test_a_text_that_repeats_takes_fewer_steps(steps: Steps) -> None:
    output = OutputConfig(return_perf_metrics=True, exclude_input_from_output=True)
    (result,) = _run(_config(), table_logits(ROUND, 32), Request([1], 45, output_config=output), before_step=steps)
    assert result.output_token_ids[0] == [1 + number % 5 for number in range(1, 46)]
    assert steps.longest == 4
    # Five tokens until a token comes again, then up to four at a time.
    assert steps.count <= 8 + 40 / 4
    assert result.request_perf_metrics is not None
    metrics = result.request_perf_metrics.speculative_decoding
    assert metrics.total_accepted_draft_tokens == 45 - steps.count
    assert metrics.total_draft_tokens == metrics.total_accepted_draft_tokens


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("requests", [1, 2, 4])
def test_the_text_is_that_of_greedy_search(seed: int, requests: int) -> None:
    def narrow(history: list[int]) -> Any:
        """Few tokens are likely, so that n-grams come again and often go on in another way."""
        row = hashed_logits(32)(history[-3:])
        row[8:] -= 100
        return row

    wanted = [
        Request([3 + seed, 4, 5 + number, 4], 60, end_id=6, stop_words=[[3, 7]], streaming=number % 2 == 1)
        for number in range(requests)
    ]
    plain = _run(ExecutorConfig(), narrow, *_whole(wanted))
    assert [r.output_token_ids for r in _run(_config(), narrow, *_whole(wanted))] == [r.output_token_ids for r in plain]
    assert [r.finish_reasons for r in _run(_config(), narrow, *wanted)] == [r.finish_reasons for r in plain]


def _remembering(most: int = 100) -> ExecutorConfig:
    config = _config()
    vars(config)["answer_ngrams"] = most
    return config


def _accepted(executor: Executor, salt: int | None, text: Sequence[int]) -> int:
    """How many drafts of a text without repetitions were right, when it was asked for once more."""
    output = OutputConfig(return_perf_metrics=True, exclude_input_from_output=True)
    request = Request([1], len(text), output_config=output, cache_salt_id=salt)
    (response,) = executor.await_responses(executor.enqueue_request(request), LIMIT)
    assert response.result.output_token_ids == [list(text)]
    assert response.result.request_perf_metrics is not None
    return response.result.request_perf_metrics.speculative_decoding.total_accepted_draft_tokens


@pytest.mark.parametrize("paged", [False, True])
def test_answers_are_guessed_of_earlier_ones_with_the_same_salt_alone(paged: bool) -> None:
    logits = table_logits({token: token + 1 for token in range(1, 31)}, 32)
    model = FakePacked(60, vocab_size=32, max_seq_len=256, max_sequences=2, logits=logits)
    runner = PagedRunner(model) if paged else FakeRunner(logits=logits, max_seq_len=256)
    with Executor.from_runner(runner, _remembering()) as executor:
        for salt in (7, 8, None, None):  # of nothing yet, of no other salt, and never without one
            assert _accepted(executor, salt, range(2, 30)) == 0
        assert _accepted(executor, 7, range(2, 30)) > 10
    with Executor.from_runner(FakeRunner(logits=logits, max_seq_len=256), _config()) as executor:
        assert [_accepted(executor, 7, range(2, 30)) for _ in range(2)] == [0, 0]


def test_few_ngrams_are_remembered_and_none_of_prompts() -> None:
    logits = table_logits({token: token + 1 for token in range(1, 31)}, 32)
    with Executor.from_runner(FakeRunner(logits=logits, max_seq_len=256), _remembering(3)) as executor:
        executor.await_responses(executor.enqueue_request(Request(list(range(1, 31)), 1, cache_salt_id=7)), LIMIT)
        for _ in range(2):  # the latest three lie behind what is asked for again
            assert _accepted(executor, 7, range(2, 22)) == 0
        assert len(executor._assembly.intake._memory._rests) == 3  # type: ignore[union-attr]


def test_texts_with_a_memory_are_those_of_greedy_search() -> None:
    def narrow(history: list[int]) -> Any:
        row = hashed_logits(32)(history[-3:])
        row[8:] -= 100
        return row

    def texts(config: ExecutorConfig) -> list[Any]:
        with Executor.from_runner(FakeRunner(logits=narrow, max_seq_len=256), config) as executor:
            wanted = [Request([3 + number % 5, 4], 60, cache_salt_id=number % 2) for number in range(20)]
            answers = [executor.await_responses(executor.enqueue_request(one), LIMIT)[0] for one in wanted]
            return [answer.result.output_token_ids for answer in answers]

    assert texts(_remembering()) == texts(ExecutorConfig())


@pytest.mark.parametrize(("most", "config"), [(0, _config()), (True, _config()), (5, ExecutorConfig())])
def test_a_memory_is_a_number_of_ngrams_beside_lookahead(most: Any, config: ExecutorConfig) -> None:
    vars(config)["answer_ngrams"] = most
    with pytest.raises(CheckError, match="answer_ngrams"):
        Executor.from_runner(FakeRunner(), config)


def _whole(requests: Sequence[Request]) -> list[Request]:
    for request in requests:
        request.streaming = False
    return list(requests)


def test_penalties_log_probs_and_logits_are_as_without_it() -> None:
    def request() -> Request:
        wanted = OutputConfig(return_log_probs=True, return_generation_logits=True)
        return Request([1, 2, 3, 1], 30, output_config=wanted, sampling_config=SamplingConfig(frequency_penalty=0.9))

    (plain,) = _run(ExecutorConfig(), table_logits(ROUND, 16), request(), vocab_size=16)
    (drafted,) = _run(_config(), table_logits(ROUND, 16), request(), vocab_size=16)
    assert drafted.output_token_ids == plain.output_token_ids
    assert drafted.log_probs is not None
    assert plain.log_probs is not None
    np.testing.assert_allclose(drafted.log_probs, plain.log_probs)
    np.testing.assert_array_equal(drafted.generation_logits, plain.generation_logits)


def test_requests_that_cannot_be_drafted_are_served_without(steps: Steps) -> None:
    sampled = Request([1], 20, sampling_config=SamplingConfig(top_p=0.9))
    several = Request([1], 20, sampling_config=SamplingConfig(num_return_sequences=2))
    processed = Request([1], 20, logits_post_processor=lambda *_: None)
    for request in (sampled, several, processed):
        _run(_config(), table_logits(ROUND, 32), request, before_step=steps)
    assert steps.longest == 1


def test_beams_go_on_beside_it() -> None:
    request = Request([1], 9, sampling_config=SamplingConfig(2))
    (beams,) = _run(_config(max_beam_width=2), table_logits(ROUND, 32), request)
    assert len(beams.output_token_ids) == 2


def test_without_guesses_a_step_is_the_same_as_without_lookahead() -> None:
    kinds: list[type] = []
    new = table_logits({token: token + 1 for token in range(1, 31)}, 32)
    _run(_config(), new, *[Request([1], 20) for _ in range(2)], before_step=lambda step: kinds.append(type(step)))
    assert kinds[1:].count(DecodeRound) > 15


def test_a_crowd_is_not_drafted(steps: Steps) -> None:
    wanted = [Request([1], 30) for _ in range(4)]
    found = _run(_config(), table_logits(ROUND, 32), *wanted, before_step=steps)
    assert len({tuple(result.output_token_ids[0]) for result in found}) == 1
    assert steps.longest == 1


def test_a_request_may_ask_for_smaller_sizes_only(steps: Steps) -> None:
    logits = table_logits(ROUND, 32)
    _run(_config(), logits, Request([1], 30, lookahead_config=LookaheadDecodingConfig(1, 2, 1)), before_step=steps)
    assert steps.longest == 2
    for config, text in (
        (_config(), "max_ngram_size 5 is more than the executor's (4)"),
        (ExecutorConfig(), "needs an executor with"),
    ):
        request = Request([1], 3, lookahead_config=LookaheadDecodingConfig(4, 5, 4))
        with Executor.from_runner(FakeRunner(), config) as executor:
            (response,) = executor.await_responses(executor.enqueue_request(request), LIMIT)
            assert text in response.error_msg


def test_ngrams_of_one_token_draft_nothing(steps: Steps) -> None:
    _run(_config(LookaheadDecodingConfig(1, 1, 0)), table_logits(ROUND, 32), Request([1], 20), before_step=steps)
    assert steps.longest == 1
