"""A draft model: the texts are those of the model alone, in fewer steps."""

from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    Executor,
    ExternalDraftTokensConfig,
    FinishReason,
    KvCacheConfig,
    OutputConfig,
    Request,
    Result,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.engine.drafting import DraftLength
from repoagent_llm.runner.paged import PackedStep, PagedRunner

from llm.tests.drafting_kit import LIMIT, Pair, drafting, finish, mostly, plain
from llm.tests.fake_packed import FakePacked
from llm.tests.fake_runner import hashed_logits

NEW_ONLY = OutputConfig(exclude_input_from_output=True)
COUNTED = OutputConfig(return_perf_metrics=True)
MODEL = hashed_logits(64)
SAMPLING: list[dict[str, Any]] = [
    {"top_k": 5},
    {"top_k": 64, "temperature": 0.5},
    {"top_p": 0.8},
    {"top_p": 0.05, "temperature": 3.0},  # most numbers are refused
    {"top_p": 0.9, "top_p_decay": 0.9, "top_p_min": 0.2, "top_p_reset_ids": 7},
    {"top_k": 9, "top_p": 0.7, "temperature": 2.0},
    {"top_k": 9, "top_p": 0.99, "top_p_decay": 0.95},
    {"min_p": 0.05},
    {"top_p": 0.9, "min_p": 0.02, "temperature": 1.5},
    {"top_p": 0.9, "repetition_penalty": 1.3, "presence_penalty": 0.4, "frequency_penalty": 0.7, "min_tokens": 9},
    {"top_k": 8, "no_repeat_ngram_size": 2},
]


def test_a_model_that_drafts_for_itself_is_always_right() -> None:
    output = OutputConfig(exclude_input_from_output=True, return_perf_metrics=True)
    request = Request([1, 2], 21, output_config=output)
    with Pair(drafting(), MODEL) as pair:
        (result,) = pair.ask(request)
        stats = [item.specdec_stats for item in pair.executor.get_latest_iteration_stats()]
    assert result.output_token_ids == plain(request)[0].output_token_ids
    # The prompt gives the first token; then three drafts and one token more at a time.
    assert pair.steps.seen == [[2], *[[4]] * 5]
    assert pair.guesses.seen == [[3], [1], [1], *[[2], [1], [1]] * 4]
    assert result.request_perf_metrics is not None
    metrics = result.request_perf_metrics.speculative_decoding
    assert (metrics.total_draft_tokens, metrics.total_accepted_draft_tokens, metrics.acceptance_rate) == (15, 15, 1.0)
    assert stats[0] is None
    for item in stats[1:]:
        assert item is not None
        assert (item.num_draft_tokens, item.num_accepted_tokens, item.num_requests_with_draft_tokens) == (3, 3, 1)
        assert item.acceptance_length == 4.0
        assert item.iter_latency_ms > 0
        assert 0 < item.draft_overhead < 1


@pytest.mark.parametrize("length", [1, 2, 5])
def test_a_draft_model_that_is_sometimes_wrong_saves_what_it_can(length: int) -> None:
    guess = mostly(MODEL)
    request = Request([7, 8, 9], 40)
    (expected,) = plain(request)
    with Pair(drafting(length), guess) as pair:
        (result,) = pair.ask(request)
    assert result.output_token_ids == expected.output_token_ids
    # How far it is right can be told from the text; with a wrong history it would be right nowhere.
    text, place, steps, guess_count = expected.output_token_ids[0], 4, 1, DraftLength(length)
    while place < 43:
        most, right = min(43 - place - 1, guess_count.take() if place < 42 else 0), 0
        while right < most and int(guess(text[: place + right]).argmax()) == text[place + right]:
            right += 1
        if most:
            guess_count.note(most, right)
        place, steps = place + right + 1, steps + 1
    assert len(pair.steps.seen) == steps
    assert steps < 40


def test_a_draft_model_that_is_always_wrong_changes_nothing() -> None:
    request = Request([3], 30)
    with Pair(drafting(), lambda history: -MODEL(history)) as pair:
        (result,) = pair.ask(request)
    assert result.output_token_ids == plain(request)[0].output_token_ids
    assert len(pair.steps.seen) == 30
    # Three guesses, one three times, and one more after 2, 4 and 8 steps without any.
    assert [len(lengths) for lengths in pair.guesses.seen] == [1] * 9
    assert [sum(lengths) for lengths in pair.guesses.seen] == [2, 1, 1, 1, 1, 1, 3, 5, 9]


def test_two_requests_are_drafted_together_and_a_crowd_is_not() -> None:
    requests = [Request([5 + number], 13) for number in range(5)]
    expected = [result.output_token_ids for result in plain(*requests)]
    with Pair(drafting(), MODEL) as pair:
        assert [result.output_token_ids for result in pair.ask(*requests[:2])] == expected[:2]
        assert [2, 2] in pair.guesses.seen
        drafted = len(pair.guesses.seen)
        assert [result.output_token_ids for result in pair.ask(*requests)] == expected
        assert len(pair.guesses.seen) == drafted
    with Pair(drafting(crowd=1), MODEL) as pair:
        assert [result.output_token_ids for result in pair.ask(*requests[:2])] == expected[:2]
        assert pair.guesses.seen == []


def test_without_a_number_a_slab_is_drafted_for_where_one_request_runs() -> None:
    requests = [Request([5 + number], 13) for number in range(2)]
    with Pair(drafting(crowd=None), MODEL) as pair:
        pair.ask(*requests)
        assert {len(lengths) for lengths in pair.guesses.seen} <= {1}
        pair.ask(requests[0])
        assert pair.guesses.seen


@pytest.mark.parametrize("one_in", [1000, 3])
def test_without_a_number_pages_are_drafted_for_together(one_in: int) -> None:
    """One run verifies the guesses of all."""
    requests = [
        Request([5 + number, number], 40, sampling_config=SamplingConfig(seed=number, top_k=1 + number % 3))
        for number in range(7)
    ]
    runs: list[list[int]] = []

    def note(step: PackedStep) -> None:
        runs.append(np.diff(step.begins).tolist())

    model = FakePacked(60, vocab_size=64, max_seq_len=256, max_sequences=9, logits=MODEL, before_run=note)
    drafter = PagedRunner(FakePacked(60, vocab_size=64, max_seq_len=256, max_sequences=7, logits=mostly(MODEL, one_in)))
    runner = PagedRunner(model)
    with Executor.from_runner(runner, drafting(crowd=None), drafter) as executor:
        engine: Any = executor._assembly.engine
        engine._cost.note = engine._drafting._model.cost.note = lambda tokens, seconds: None
        ids = executor.enqueue_requests(requests)
        texts = [finish(executor, request_id).output_token_ids for request_id in ids]
    assert texts == [result.output_token_ids for result in plain(*requests)]
    assert max(sum(length > 1 for length in lengths) for lengths in runs[1:]) > 2  # of several requests in one run
    if one_in == 1000:
        assert len(runs) < 30  # 40 without guesses
    assert (runner.pool.busy, drafter.pool.busy) == (0, 0)


def test_neighbours_that_cannot_be_drafted_go_on_beside_it() -> None:
    def processed(_: int, logits: Any, *__: object) -> None:
        logits[..., 1::2] -= 100

    wanted = {
        "processed": Request([4, 2], 20, logits_post_processor=processed),
        "several": Request([4, 2], 20, sampling_config=SamplingConfig(num_return_sequences=2, top_k=4)),
        "beams": Request([4, 2], 20, sampling_config=SamplingConfig(2)),
    }
    for name, other in wanted.items():
        request = Request([9, 9], 20)
        with Pair(drafting(max_beam_width=2), MODEL) as pair:
            pair.ask(other)
            assert pair.guesses.seen == [], name
            if name == "beams":  # widths do not share a batch
                continue
            assert pair.ask(other, request)[1].output_token_ids == plain(request)[0].output_token_ids
            assert max(map(len, pair.guesses.seen)) == 1


def test_streams_bring_several_tokens_at_a_time() -> None:
    request = Request([1, 2], 21, streaming=True, output_config=NEW_ONLY)
    with Pair(drafting(), MODEL) as pair:
        request_id, sizes = pair.executor.enqueue_request(request), list[int]()
        while sum(sizes) < 21:
            responses = pair.executor.await_responses(request_id, LIMIT)
            sizes += [len(response.result.output_token_ids[0]) for response in responses]
        assert sizes == [1, 4, 4, 4, 4, 4]
        assert pair.ask(request)[0].output_token_ids == plain(request)[0].output_token_ids


def test_texts_end_in_the_middle_of_drafts_that_were_right() -> None:
    (whole,) = plain(Request([1, 2], 30, output_config=NEW_ONLY))
    said = whole.output_token_ids[0]
    for place in range(1, 9):
        stopped = Request([1, 2], 30, stop_words=[said[place - 1 : place + 1]], output_config=NEW_ONLY)
        ended = Request([1, 2], 30, end_id=said[place], output_config=NEW_ONLY)
        with Pair(drafting(), MODEL) as pair:
            found = pair.ask(stopped, ended)
        assert [result.output_token_ids for result in found] == [[said[: place + 1]], [said[: said.index(said[place])]]]
        assert [r.finish_reasons for r in found] == [[FinishReason.STOP_WORDS], [FinishReason.END_ID]]


def test_cancelling_frees_the_drafters_sequence() -> None:
    with Pair(drafting(), mostly(MODEL)) as pair:
        request_id = pair.executor.enqueue_request(Request([1], 1000, streaming=True))
        pair.executor.await_responses(request_id, LIMIT)
        pair.executor.cancel_request(request_id)
        while not (last := pair.executor.await_responses(request_id, LIMIT)[-1].result).is_final:
            pass
        assert last.finish_reasons == [FinishReason.CANCELLED]
        request = Request([6], 9)
        assert pair.ask(request)[0].output_token_ids == plain(request)[0].output_token_ids
    assert (pair.model.left, pair.drafter.left) == (0, 0)


def test_penalties_log_probs_and_logits_are_as_without_it() -> None:
    output = OutputConfig(return_log_probs=True, return_generation_logits=True)
    penalties = SamplingConfig(frequency_penalty=0.9, repetition_penalty=1.3, temperature=0.5, min_tokens=20)
    request = Request([1, 2], 30, end_id=5, output_config=output, sampling_config=penalties, bad_words=[[3], [4, 5]])
    (alone,) = plain(request)
    with Pair(drafting(), MODEL) as pair:
        (result,) = pair.ask(request)
    assert result.output_token_ids == alone.output_token_ids
    assert result.log_probs is not None
    assert alone.log_probs is not None
    np.testing.assert_allclose(result.log_probs, alone.log_probs)
    np.testing.assert_array_equal(result.generation_logits, alone.generation_logits)
    # The rules are the drafter's too, so that it is right.
    assert len(pair.steps.seen) < 12


@pytest.mark.slow
def test_sampled_texts_follow_the_model_exactly() -> None:
    source = np.random.default_rng(1)
    wanted, guessed = np.exp(source.standard_normal((2, 4, 4)))
    wanted, guessed = (table / table.sum(axis=1, keepdims=True) for table in (wanted, guessed))
    count = 3000

    def of(table: Any) -> Any:
        return lambda history: (0.7 * np.log(table[history[-1]])).astype(np.float32)

    requests = [
        Request([1], 4, sampling_config=SamplingConfig(top_k=4, seed=seed, temperature=0.7), output_config=NEW_ONLY)
        for seed in range(count)
    ]
    with Pair(drafting(2), of(guessed), of(wanted)) as pair:
        texts = [pair.ask(request)[0].output_token_ids[0] for request in requests]
        stats = [item.specdec_stats for item in pair.executor.get_latest_iteration_stats() if item.specdec_stats]
    found = np.zeros((4, 4, 4))
    np.add.at(found, tuple(np.array(texts).T[1:]), 1)
    expected = count * np.einsum("a,ab,bc->abc", wanted[1] @ wanted, wanted, wanted)
    error = ((found - expected) ** 2 / expected).sum()
    assert abs(error - 63) < 5 * np.sqrt(2 * 63)
    # A draft is kept as often as a number falls on the same token in both, behind the token that the prompt gives.
    (ends, starts), (guessed_ends, guessed_starts) = ((t.cumsum(1), t.cumsum(1) - t) for t in (wanted, guessed))
    right = np.maximum(np.minimum(ends, guessed_ends) - np.maximum(starts, guessed_starts), 0)
    one, two = wanted[1] @ right.sum(axis=1), wanted[1] @ right @ right.sum(axis=1)
    kept = np.bincount([item.num_accepted_tokens for item in stats if item.num_draft_tokens == 2], minlength=3)
    np.testing.assert_allclose(kept / kept.sum(), [1 - one, one - two, two], atol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLING)
def test_a_seed_gives_the_same_text_with_and_without_drafts(sampling: dict[str, Any]) -> None:
    requests = [
        Request(
            [2, 3 + seed], 20 + 4 * seed, sampling_config=SamplingConfig(seed=seed, **sampling), output_config=COUNTED
        )
        for seed in range(5)
    ]
    expected = [result.output_token_ids for result in plain(*requests)]
    same = requests[0], Request([2, 3], 20, sampling_config=SamplingConfig(seed=1, **sampling))
    assert expected[0] != plain(*same)[1].output_token_ids, "it is drawn"
    for guess, least, most in ((MODEL, 1.0, 1.0), (mostly(MODEL), 0.2, 0.9)):
        with Pair(drafting(crowd=1), guess) as pair:
            alone = [pair.ask(request)[0] for request in requests]
            assert [result.output_token_ids for result in alone] == expected
            assert least <= _rate(alone) <= most
            # Nothing is drafted in company: only for the last one, when the others have ended.
            company = pair.ask(*requests)
            assert [result.output_token_ids for result in company] == expected
            assert [_drafted(result) > 0 for result in company] == [False] * 4 + [True]


def test_pauses_change_nothing() -> None:
    requests = [Request([5 + number] * 20, 60) for number in range(2)]
    config = drafting(
        scheduler_config=SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
        kv_cache_config=KvCacheConfig(max_tokens=128, enable_block_reuse=False),
    )
    with Pair(config, mostly(MODEL)) as pair:
        found = pair.ask(*requests)
        stats = pair.executor.get_latest_iteration_stats()
    assert sum(item.inflight_batching_stats.num_paused_requests for item in stats if item.inflight_batching_stats) > 0
    assert [r.output_token_ids for r in found] == [r.output_token_ids for r in plain(*requests)]
    assert sum(item.specdec_stats.num_accepted_tokens for item in stats if item.specdec_stats) > 20


def test_external_drafts_are_verified_and_nothing_else_is_drafted() -> None:
    said = plain(Request([1], 20, output_config=NEW_ONLY))[0].output_token_ids[0]
    request = Request(
        [1], 20, output_config=NEW_ONLY, external_draft_tokens_config=ExternalDraftTokensConfig([*said[:3], 0])
    )
    with Pair(drafting(), MODEL) as pair:
        assert pair.ask(request)[0].output_token_ids == [said[:4]]
    assert (pair.steps.seen, pair.guesses.seen) == ([[5]], [])


def test_a_long_history_is_read_in_pieces() -> None:
    prompt = list(np.random.default_rng(0).integers(0, 64, 700))
    request = Request([int(token) for token in prompt], 20)
    with Pair(drafting(), MODEL) as pair:
        assert pair.ask(request)[0].output_token_ids == plain(request)[0].output_token_ids
    assert pair.guesses.seen[:2] == [[512], [190]]


def _drafted(result: Result) -> int:
    assert result.request_perf_metrics is not None
    return result.request_perf_metrics.speculative_decoding.total_draft_tokens


def _rate(results: list[Result]) -> float:
    """The share of all drafts that were right."""
    metrics = [item.request_perf_metrics.speculative_decoding for item in results if item.request_perf_metrics]
    return sum(item.total_accepted_draft_tokens for item in metrics) / sum(map(_drafted, results))
