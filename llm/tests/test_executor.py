"""class Executor: what callers see, over a runner that is a function."""

import gc
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    AdditionalModelOutput,
    BatchingType,
    CapacitySchedulerPolicy,
    DebugConfig,
    DecodingConfig,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    FinishReason,
    KvCacheConfig,
    LogitsPostProcessorConfig,
    LoraConfig,
    ModelType,
    OutputConfig,
    ParallelConfig,
    Request,
    RequestStage,
    RequestType,
    Response,
    SamplingConfig,
    SchedulerConfig,
    kv_cache,
)
from repoagent_llm.engine.response_board import ResponseBoard
from repoagent_llm.runner.protocol import Segment
from repoagent_llm.types.executor_errors import CheckError, EngineError, QueueFullError, UnsupportedFeatureError

from llm.tests.fake_runner import FakeRunner, table_logits

LIMIT = timedelta(seconds=120)
# After 1, 2, 3, 4 the model says 2, 4, 2, 4, ...
TABLE = {4: 2, 2: 4, 1: 1, 3: 3, 5: 6, 6: 7, 7: 5}
NEW_ONLY = OutputConfig(exclude_input_from_output=True)
Start = Callable[..., Executor]


class Gate:
    """Holds the runner before a step until it is opened, so that tests can look while something runs."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.reached = threading.Event()

    def __call__(self, segments: Sequence[Segment]) -> None:
        self.reached.set()
        assert self.open.wait(120)


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Executor] = []

    def make(config: ExecutorConfig | None = None, **runner: Any) -> Executor:
        runner.setdefault("logits", table_logits(TABLE, 32))
        executor = Executor.from_runner(FakeRunner(**runner), config or ExecutorConfig(max_beam_width=4))
        started.append(executor)
        return executor

    yield make
    for executor in started:
        gate = getattr(executor, "gate", None)
        if gate is not None:
            gate.open.set()
        executor.shutdown()


def _all(executor: Executor, request: Request) -> list[Response]:
    """Every response of a request."""
    request_id, responses = executor.enqueue_request(request), []
    while True:
        taken = executor.await_responses(request_id, LIMIT)
        assert taken, "no response within the limit"
        responses += taken
        if taken[-1].has_error() or taken[-1].result.is_final:
            return responses


def _one(executor: Executor, request: Request) -> Response:
    (response,) = _all(executor, request)
    return response


def test_a_request_without_streaming_gets_one_response_with_prompt_and_new_tokens(start: Start) -> None:
    response = _one(start(), Request([1, 2, 3, 4], 5, client_id=77))
    assert response.result.output_token_ids == [[1, 2, 3, 4, 2, 4, 2, 4, 2]]
    assert response.result.finish_reasons == [FinishReason.LENGTH]
    assert response.result.is_final
    assert response.client_id == 77
    assert _one(start(), Request([1, 2, 3, 4], 3, output_config=NEW_ONLY)).result.output_token_ids == [[2, 4, 2]]


def test_streaming_gives_one_response_for_each_token(start: Start) -> None:
    responses = _all(start(), Request([4], 3, streaming=True))
    assert [response.result.output_token_ids for response in responses] == [[[2]], [[4]], [[2]]]
    assert [response.result.is_final for response in responses] == [False, False, True]
    assert [response.result.finish_reasons[0] for response in responses[:2]] == [FinishReason.NOT_FINISHED] * 2
    assert [response.result.decoding_iter for response in responses] == [1, 2, 3]


def test_streaming_can_repeat_all_generated_tokens(start: Start) -> None:
    responses = _all(start(), Request([4], 3, streaming=True, return_all_generated_tokens=True))
    assert [response.result.output_token_ids for response in responses] == [[[2]], [[2, 4]], [[2, 4, 2]]]


def test_the_end_token_ends_and_is_not_kept(start: Start) -> None:
    result = _one(start(), Request([1, 2, 3, 4], 9, end_id=4, output_config=NEW_ONLY)).result
    assert (result.output_token_ids, result.finish_reasons) == ([[2]], [FinishReason.END_ID])
    unlimited = _one(start(), Request([4], 3, end_id=-1, output_config=NEW_ONLY)).result
    assert unlimited.finish_reasons == [FinishReason.LENGTH]
    last = _all(start(), Request([4], 9, end_id=4, streaming=True))[-1].result
    assert (last.output_token_ids, last.is_final) == ([[]], True)


def test_stop_words_end_and_are_kept(start: Start) -> None:
    result = _one(start(), Request([1, 2, 3, 4], 9, stop_words=[[4, 2]], output_config=NEW_ONLY)).result
    assert (result.output_token_ids, result.finish_reasons) == ([[2, 4, 2]], [FinishReason.STOP_WORDS])


def test_several_sequences_come_as_separate_responses(start: Start) -> None:
    sampling = SamplingConfig(top_p=0.9, temperature=5.0, seed=3)
    responses = _all(start(), Request([4], 6, sampling_config=sampling, num_return_sequences=3, output_config=NEW_ONLY))
    assert [response.result.sequence_index for response in responses] == [0, 1, 2]
    assert [response.result.is_sequence_final for response in responses] == [True] * 3
    assert [response.result.is_final for response in responses] == [False, False, True]
    assert len({tuple(response.result.output_token_ids[0]) for response in responses}) == 3


def test_beams_come_in_one_response_best_first(start: Start) -> None:
    sampling = SamplingConfig(3)
    output = OutputConfig(exclude_input_from_output=True, return_log_probs=True)
    result = _one(start(), Request([4], 4, sampling_config=sampling, output_config=output)).result
    assert result.output_token_ids[0] == [2, 4, 2, 4]
    assert len(result.output_token_ids) == len(result.finish_reasons) == 3
    assert result.cum_log_probs == sorted(result.cum_log_probs or [], reverse=True)
    fewer = SamplingConfig(3, num_return_sequences=2)
    assert len(_one(start(), Request([4], 4, sampling_config=fewer)).result.output_token_ids) == 2


def test_streamed_beams_are_given_whole(start: Start) -> None:
    responses = _all(start(), Request([4], 3, streaming=True, sampling_config=SamplingConfig(2)))
    assert [len(response.result.output_token_ids[0]) for response in responses] == [1, 2, 3]
    assert [len(response.result.output_token_ids) for response in responses] == [2, 2, 2]


def test_a_huge_bias_repeats_its_token_and_one_of_wrong_length_is_an_error(start: Start) -> None:
    executor = start()
    bias = np.zeros(32, np.float32)
    bias[9] = 1e4
    result = _one(executor, Request([4], 3, embedding_bias=bias, output_config=NEW_ONLY)).result
    assert result.output_token_ids == [[9, 9, 9]]
    wrong = _one(executor, Request([4], 3, embedding_bias=bias[:5]))
    assert "embedding bias shape is not as expected" in wrong.error_msg


def test_log_probs_belong_to_the_tokens(start: Start) -> None:
    output = OutputConfig(return_log_probs=True, exclude_input_from_output=True)
    result = _one(start(), Request([4], 3, output_config=output)).result
    expected = 10 - np.log(np.exp(10.0) + 31)
    assert result.log_probs is not None
    assert result.log_probs[0] == pytest.approx([expected] * 3, abs=1e-6)
    assert result.cum_log_probs == pytest.approx([3 * expected], abs=1e-6)


def test_a_stream_has_the_log_probs_of_all_tokens_so_far(start: Start) -> None:
    executor = start()
    request = Request([4], 4, streaming=True, output_config=OutputConfig(return_log_probs=True))
    asked = executor.enqueue_request(request)
    found: list[list[float]] = []
    while len(found) < 4:
        for response in executor.await_responses(asked, LIMIT):
            assert response.result.log_probs is not None
            found.append(response.result.log_probs[0])
    assert [len(log_probs) for log_probs in found] == [1, 2, 3, 4]
    assert all(found[-1][: len(log_probs)] == log_probs for log_probs in found)


def test_a_processor_for_tensors_of_a_framework_learns_what_it_is_given(start: Start) -> None:
    request = Request([4], 3)
    request.logits_post_processor = lambda _id, logits, *_others: logits.masked_fill_(0)
    response = _one(start(), request)
    assert "no attribute 'masked_fill_' (logits are NumPy arrays here; torch.from_numpy gives" in response.error_msg


def test_context_and_generation_logits(start: Start) -> None:
    executor = start(ExecutorConfig(enable_chunked_context=True, max_num_tokens=2))
    output = OutputConfig(return_context_logits=True, return_generation_logits=True)
    result = _one(executor, Request([5, 6, 7], 2, output_config=output)).result
    assert result.context_logits.shape == (3, 32)
    assert result.context_logits.argmax(axis=1).tolist() == [6, 7, 5]
    assert result.generation_logits.shape == (1, 2, 32)
    assert result.generation_logits[0].argmax(axis=1).tolist() == [5, 6]
    streamed = _all(executor, Request([5], 2, streaming=True, output_config=output))
    assert [response.result.generation_logits.shape for response in streamed] == [(1, 1, 32)] * 2
    streamed[0].clear_generation_logits()
    streamed[0].clear_context_logits()
    assert (streamed[0].result.generation_logits, streamed[0].result.context_logits) == (None, None)


def test_additional_outputs_by_name(start: Start) -> None:
    wanted = [AdditionalModelOutput("history", gather_context=True)]
    output = OutputConfig(additional_model_outputs=wanted)
    executor = start()
    result = _one(executor, Request([5, 6, 7], 2, output_config=output)).result
    found = {extra.name: extra.output for extra in result.additional_outputs}
    assert found["context_history"][:, 0].tolist() == [0, 1, 2]
    assert found["history"].shape == (1, 2, 1)
    assert found["history"][0, :, 0].tolist() == [2, 3]
    unknown = OutputConfig(additional_model_outputs=[AdditionalModelOutput("nothing")])
    assert "'nothing'" in _one(executor, Request([5], 2, output_config=unknown)).error_msg


def test_context_outputs_leave_out_a_reused_prefix(start: Start) -> None:
    executor = start()
    prompt = [5] * 40
    _one(executor, Request(prompt, 1))
    output = OutputConfig(additional_model_outputs=[AdditionalModelOutput("history", gather_context=True)])
    result = _one(executor, Request(prompt, 1, output_config=output)).result
    found = {extra.name: extra.output for extra in result.additional_outputs}
    assert found["context_history"][:, 0].tolist() == [39]


def test_post_processors_of_a_request_by_name_and_batched(start: Start) -> None:
    seen: list[Any] = []

    def only_nine(request_id: int, logits: Any, ids: Any, stream: Any, client_id: Any) -> None:
        seen.append((logits.shape, ids, stream, client_id))
        logits[:] = -np.inf
        logits[..., 9] = 0

    def all_eight(request_ids: Any, logits: Any, ids: Any, stream: Any, client_ids: Any) -> None:
        seen.append((list(request_ids), len(ids), client_ids))
        for item in logits:
            item[:] = -np.inf
            item[..., 8] = 0

    processors = LogitsPostProcessorConfig({"nine": only_nine}, all_eight)
    executor = start(ExecutorConfig(max_beam_width=2, logits_post_processor_config=processors))
    by_callable = Request([4], 2, logits_post_processor=only_nine, client_id=5, output_config=NEW_ONLY)
    assert _one(executor, by_callable).result.output_token_ids == [[9, 9]]
    assert seen == [((1, 1, 32), [[4]], None, 5), ((1, 1, 32), [[4, 9]], None, 5)]
    by_name = Request([4], 2, logits_post_processor_name="nine", output_config=NEW_ONLY)
    assert _one(executor, by_name).result.output_token_ids == [[9, 9]]
    batched = Request([4], 2, logits_post_processor_name=Request.BATCHED_POST_PROCESSOR_NAME, output_config=NEW_ONLY)
    assert _one(executor, batched).result.output_token_ids == [[8, 8]]
    shapes = []
    watching = Request([4], 2, sampling_config=SamplingConfig(2))
    watching.logits_post_processor = lambda number, logits, *rest: shapes.append(logits.shape)
    _one(executor, watching)
    assert shapes == [(1, 1, 32), (1, 2, 32)]
    assert "'ten'" in _one(executor, Request([4], 2, logits_post_processor_name="ten")).error_msg
    without = start()
    assert "processor_batched is not set" in _one(without, batched).error_msg


def test_a_post_processor_that_raises_fails_its_request_only(start: Start) -> None:
    def broken(*arguments: Any) -> None:
        raise ValueError("my own mistake")

    gate = Gate()
    executor = start(before_step=gate)
    executor.gate = gate  # type: ignore[attr-defined]
    good = executor.enqueue_request(Request([4], 3))
    bad = executor.enqueue_request(Request([4], 3, logits_post_processor=broken))
    gate.open.set()
    answers = executor.await_responses([good, bad], LIMIT)
    assert answers[0][0].result.output_token_ids == [[4, 2, 4, 2]]
    assert answers[1][0].error_msg == "the logits post-processor failed: my own mistake"


def test_a_runner_that_raises_fails_the_requests_of_that_iteration_only(start: Start) -> None:
    failing = threading.Event()

    def before_step(segments: Sequence[Segment]) -> None:
        if failing.is_set():
            failing.clear()
            raise RuntimeError("out of luck")

    executor = start(before_step=before_step)
    failing.set()
    assert _one(executor, Request([4], 3)).error_msg == "the runner failed: out of luck"
    assert _one(executor, Request([4], 3)).result.output_token_ids == [[4, 2, 4, 2]]
    assert executor._assembly.budget.used == 0


def test_an_error_response_has_an_error_of_its_kind(start: Start) -> None:
    def broken(segments: Sequence[Segment]) -> None:
        raise RuntimeError("out of luck")

    executor = start(before_step=broken)
    wrong, unknown, failed = (
        _one(executor, request).error
        for request in (
            Request([4], 3, sampling_config=SamplingConfig(7)),
            Request([4], 3, position_ids=[0]),
            Request([4], 3),
        )
    )
    assert isinstance(wrong, CheckError)
    assert isinstance(unknown, UnsupportedFeatureError)
    assert isinstance(failed, EngineError)
    assert str(failed) == "the runner failed: out of luck"
    with pytest.raises(CheckError, match="Cannot get the error message"):
        _ = _one(start(), Request([4], 3)).error


def test_external_drafts_are_accepted_as_far_as_they_are_right(start: Start) -> None:
    executor = start()
    drafts = ExternalDraftTokensConfig([2, 4, 9, 10])
    output = OutputConfig(exclude_input_from_output=True, return_perf_metrics=True, return_generation_logits=True)
    request = Request([1, 2, 3, 4], 5, streaming=True, external_draft_tokens_config=drafts, output_config=output)
    (first,) = _all(executor, request)
    assert first.result.output_token_ids == [[2, 4, 2]]
    assert first.result.decoding_iter == 1
    assert first.result.finish_reasons == [FinishReason.NOT_FINISHED]
    assert (first.result.is_final, first.result.is_sequence_final) == (True, True)
    metrics = first.result.request_perf_metrics
    assert metrics is not None
    speculative = metrics.speculative_decoding
    assert (speculative.total_draft_tokens, speculative.total_accepted_draft_tokens) == (4, 2)
    assert speculative.acceptance_rate == 0.5
    assert (metrics.first_iter, metrics.iter, metrics.last_iter) == (0, 0, 0)
    assert metrics.timing_metrics.first_token_time == metrics.timing_metrics.last_token_time
    assert first.result.avg_decoded_tokens_per_iter == 3
    assert first.result.generation_logits.shape == (3, 1, 32)
    (stats,) = [item.specdec_stats for item in executor.get_latest_iteration_stats() if item.specdec_stats]
    assert (stats.num_draft_tokens, stats.num_accepted_tokens, stats.acceptance_length) == (4, 2, 3.0)


def test_drafts_do_not_go_beyond_the_end_or_the_length(start: Start) -> None:
    executor = start()
    drafts = ExternalDraftTokensConfig([2, 4, 2, 4])
    short = _one(executor, Request([4], 2, external_draft_tokens_config=drafts, output_config=NEW_ONLY)).result
    assert short.output_token_ids == [[2, 4]]
    ended = Request([4], 9, end_id=4, external_draft_tokens_config=drafts, output_config=NEW_ONLY)
    assert _one(executor, ended).result.output_token_ids == [[2]]


@pytest.mark.slow
def test_drafts_with_logits_leave_the_distribution_as_it_is(start: Start) -> None:
    wanted = np.array([0.5, 0.2, 0.2, 0.1])
    guessed = np.array([0.1, 0.6, 0.2, 0.1])
    executor = start(vocab_size=4, logits=lambda history: np.log(wanted).astype(np.float32))
    source = np.random.default_rng(3)
    logits = np.log(guessed).astype(np.float32)[None]
    requests = [
        Request(
            [1],
            2,
            sampling_config=SamplingConfig(top_k=4, seed=seed),
            external_draft_tokens_config=ExternalDraftTokensConfig([int(source.choice(4, p=guessed))], logits),
            output_config=NEW_ONLY,
        )
        for seed in range(3000)
    ]
    answers = executor.await_responses(executor.enqueue_requests(requests), LIMIT)
    texts = [answer[0].result.output_token_ids[0] for answer in answers]
    # A second token follows where the draft was kept.
    for tokens in ([text[0] for text in texts], [text[1] for text in texts if len(text) > 1]):
        np.testing.assert_allclose(np.bincount(tokens, minlength=4) / len(tokens), wanted, atol=0.03)
    stats = [item.specdec_stats for item in executor.get_latest_iteration_stats() if item.specdec_stats]
    accepted = sum(item.num_accepted_tokens for item in stats) / sum(item.num_draft_tokens for item in stats)
    assert accepted == pytest.approx(np.minimum(wanted, guessed).sum(), abs=0.06)


def test_a_threshold_decides_which_drafts_are_kept(start: Start) -> None:
    wanted = np.log(np.array([0.5, 0.2, 0.2, 0.1])).astype(np.float32)
    executor = start(vocab_size=4, logits=lambda history: wanted)
    logits = np.log(np.array([[0.1, 0.6, 0.2, 0.1]], np.float32))

    def first(draft: int, threshold: float) -> int:
        drafts = ExternalDraftTokensConfig([draft], logits, threshold)
        request = Request(
            [1], 2, sampling_config=SamplingConfig(top_k=4), external_draft_tokens_config=drafts, output_config=NEW_ONLY
        )
        return _one(executor, request).result.output_token_ids[0][0]

    assert first(1, 0.3) == 1  # p / q is one third
    assert first(1, 0.4) == 0  # only token 0 has more of p than of q
    wrong = ExternalDraftTokensConfig([1], np.zeros((1, 9)))
    for token in (-1, 4):
        unknown = ExternalDraftTokensConfig([1, token])
        text = _one(executor, Request([1], 4, external_draft_tokens_config=unknown)).error_msg
        assert text == f"draft token {token} is not in the vocabulary of 4 tokens"
    assert "9 columns" in _one(executor, Request([1], 2, external_draft_tokens_config=wrong)).error_msg


def test_cancelling_answers_with_what_there_is(start: Start) -> None:
    gate = Gate()
    executor = start(before_step=gate)
    executor.gate = gate  # type: ignore[attr-defined]
    request_id = executor.enqueue_request(Request([4], 200))
    assert gate.reached.wait(120)
    waiting = executor.enqueue_request(Request([4], 5))
    executor.cancel_request(request_id)
    executor.cancel_request(waiting)
    executor.cancel_request(9999)
    gate.open.set()
    answers = executor.await_responses([request_id, waiting], LIMIT)
    assert [answer[-1].result.finish_reasons for answer in answers] == [[FinishReason.CANCELLED]] * 2
    assert answers[0][-1].result.is_final
    assert answers[0][-1].result.output_token_ids[0][:2] == [4, 2]
    executor.cancel_request(request_id)


def test_a_cancelled_request_is_in_no_further_step_and_its_rows_are_free(start: Start) -> None:
    gate = Gate()
    steps: list[int] = []

    def before(segments: Sequence[Segment]) -> None:
        steps.append(len(segments))
        gate(segments)

    executor = start(before_step=before)
    ids = executor.enqueue_requests([Request([4], 200), Request([4], 60)])
    assert gate.reached.wait(120)
    executor.cancel_request(ids[0])
    ran = len(steps)
    gate.open.set()
    assert executor.await_responses(ids[1], LIMIT)[-1].result.is_final
    assert set(steps[ran:]) == {1}
    assert executor._assembly.budget.used == 0


@pytest.mark.parametrize("sampling", [SamplingConfig(3), SamplingConfig(num_return_sequences=3, top_p=0.5)])
def test_cancelling_beams_and_several_sequences(start: Start, sampling: SamplingConfig) -> None:
    gate = Gate()
    executor = start(before_step=gate)
    executor.gate = gate  # type: ignore[attr-defined]
    first = executor.enqueue_request(Request([4], 200, sampling_config=sampling))
    assert gate.reached.wait(120)
    executor.cancel_request(first)
    gate.open.set()
    responses = executor.await_responses(first, LIMIT)
    assert responses[-1].result.is_final
    assert set(responses[-1].result.finish_reasons) == {FinishReason.CANCELLED}
    assert executor._assembly.budget.used == 0


def test_a_request_that_is_late_ends_as_timed_out(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        """Seconds that pass only while the third step runs."""

        now, steps = 100.0, 0

        def monotonic(self) -> float:
            return self.now

        def step(self, segments: Sequence[Segment]) -> None:
            self.steps += 1
            self.now += 1.0 if self.steps == 3 else 0.0

    clock = Clock()
    monkeypatch.setattr("repoagent_llm.engine.engine.time", clock)
    monkeypatch.setattr("repoagent_llm.engine.intake.time", clock)
    executor = start(before_step=clock.step, max_seq_len=4096)
    result = _one(executor, Request([4], 4000, allotted_time_ms=timedelta(milliseconds=30))).result
    assert (result.finish_reasons, result.output_token_ids) == ([FinishReason.TIMED_OUT], [[4, 2, 4, 2]])


def test_await_responses_in_all_its_forms(start: Start) -> None:
    executor = start()
    assert executor.await_responses(timedelta(milliseconds=1)) == []
    assert executor.await_responses(timeout=timedelta(0)) == []
    first, second = executor.enqueue_requests([Request([4], 1), Request([4], 2)])
    assert second == first + 1
    by_ids = executor.await_responses([first, second], LIMIT)
    assert [[response.request_id for response in group] for group in by_ids] == [[first], [second]]
    (gone,) = executor.await_responses(first, LIMIT)
    assert gone.error_msg == f"ReqId {first} has already been processed and was terminated."
    third = executor.enqueue_request(Request([4], 1))
    assert [response.request_id for response in executor.await_responses()] == [third]
    fourth = executor.enqueue_request(Request([4], 1))
    assert executor.await_responses(id=fourth)[0].result.is_final
    numbers = np.array(executor.enqueue_requests([Request([4], 1), Request([4], 1)]))
    assert [len(group) for group in executor.await_responses(numbers, LIMIT)] == [1, 1]  # type: ignore[call-overload]
    assert executor.await_responses(numbers[0], LIMIT)[0].has_error()
    with pytest.raises(TypeError, match="timedelta"):
        executor.await_responses(first, 3)  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="await_responses takes"):
        executor.await_responses(wrong=1)  # type: ignore[call-overload]


def test_responses_ready_are_counted(start: Start) -> None:
    executor = start()
    request_id, longer = executor.enqueue_requests([Request([4], 3, streaming=True), Request([4], 4)])
    # The longer one ends an iteration later, so all three responses are there.
    assert executor.await_responses(longer, LIMIT)[0].result.is_final
    assert executor.get_num_responses_ready(request_id) == executor.get_num_responses_ready() == 3
    executor.await_responses(request_id)
    assert executor.get_num_responses_ready() == executor.get_num_responses_ready(request_id) == 0


def test_after_shutdown_everything_raises_but_can_enqueue_requests(start: Start) -> None:
    executor = start()
    assert executor.can_enqueue_requests()
    executor.shutdown()
    executor.shutdown()
    assert not executor.can_enqueue_requests()
    with pytest.raises(RuntimeError, match=r"^Shutdown called, cannot enqueue requests$"):
        executor.enqueue_request(Request([1], 1))
    calls: list[Callable[[], object]] = [
        executor.await_responses,
        executor.get_latest_iteration_stats,
        executor.get_latest_request_stats,
        executor.get_latest_debug_tensors,
        lambda: executor.cancel_request(1),
        executor.get_num_responses_ready,
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"^Shutdown called$"):
            call()


def test_shutdown_ends_a_blocked_wait_and_what_it_took_is_returned(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: SimpleQueue[int] = SimpleQueue()
    take_one = ResponseBoard._take_one

    def noting(board: ResponseBoard, request_id: int, deadline: float | None) -> list[Response]:
        found = take_one(board, request_id, deadline)
        taken.put(request_id)
        return found

    monkeypatch.setattr(ResponseBoard, "_take_one", noting)
    gate = Gate()
    executor = start(before_step=gate)
    executor.gate = gate  # type: ignore[attr-defined]
    bad, *good = executor.enqueue_requests([Request([99], 100), Request([4], 100), Request([4], 100)])
    answers: list[Any] = []
    waiter = threading.Thread(target=lambda: answers.append(executor.await_responses([bad, *good])))
    waiter.start()
    assert taken.get(timeout=120) == bad  # the waiter has it, and waits for the others
    assert gate.reached.wait(120)
    executor._assembly.inbox.stop()
    gate.open.set()
    waiter.join(120)
    assert [len(group) for group in answers[0]] == [1, 0, 0]


def test_of_several_that_wait_for_one_request_those_that_come_too_late_are_told(start: Start) -> None:
    gate = Gate()
    executor = start(before_step=gate)
    executor.gate = gate  # type: ignore[attr-defined]
    request_id = executor.enqueue_request(Request([4], 1))
    answers: list[list[Response]] = []
    waiters = [
        threading.Thread(target=lambda: answers.append(executor.await_responses(request_id, LIMIT))) for _ in range(3)
    ]
    for waiter in waiters:
        waiter.start()
    gate.open.set()
    for waiter in waiters:
        waiter.join(120)
    assert sorted(taken[0].has_error() for taken in answers) == [False, True, True]


@pytest.mark.slow
def test_an_executor_that_nobody_holds_stops_and_a_program_ends_in_the_midst_of_its_work() -> None:
    executor = Executor.from_runner(FakeRunner(), ExecutorConfig())
    thread = executor._assembly.engine._thread
    del executor
    gc.collect()
    assert not thread.is_alive()
    program = """
from repoagent_llm import Executor, ExecutorConfig, Request
from llm.tests.fake_runner import FakeRunner
runner = FakeRunner(max_seq_len=10**6)
runner.close = lambda: print("closed")
executor = Executor.from_runner(runner, ExecutorConfig())
request_id = executor.enqueue_request(Request([1], 10**5, streaming=True))
executor.await_responses(request_id)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert (done.stdout, done.stderr) == ("closed\n", "")


def test_a_post_processor_may_shut_the_executor_down(start: Start) -> None:
    executor = start()
    ended = threading.Event()

    def end(*arguments: Any) -> None:
        executor.shutdown()
        ended.set()

    request_id = executor.enqueue_request(Request([4], 3, logits_post_processor=end))
    executor._assembly.engine._thread.join()
    assert ended.is_set()
    assert not executor.can_enqueue_requests()
    with pytest.raises(RuntimeError, match="Shutdown called"):
        executor.await_responses(request_id)


@pytest.mark.parametrize("tokens", [1, 5])
def test_an_executor_that_waits_holds_nothing_of_earlier_requests(start: Start, tokens: int) -> None:
    def processor(*arguments: Any) -> None:
        pass

    gone = threading.Event()
    weakref.finalize(processor, gone.set)
    executor = start()
    executor.await_responses(executor.enqueue_request(Request([4], tokens, logits_post_processor=processor)), LIMIT)
    del processor
    assert gone.wait(120)


def test_the_queue_limit(start: Start) -> None:
    gate = Gate()
    executor = start(ExecutorConfig(max_queue_size=2, max_batch_size=1), before_step=gate)
    executor.gate = gate  # type: ignore[attr-defined]
    first = executor.enqueue_request(Request([4], 1))
    assert gate.reached.wait(120)
    others = executor.enqueue_requests([Request([4], 1), Request([4], 1)])
    text = r"^Maximum queue size of 2 has been reached, please try again later$"
    with pytest.raises(RuntimeError, match=text):
        executor.enqueue_request(Request([4], 1))
    gate.open.set()
    assert all(len(group) == 1 for group in executor.await_responses([first, *others], LIMIT))


def test_requests_that_are_still_being_checked_count_for_the_queue_limit(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = start(ExecutorConfig(max_queue_size=1))
    task, entered, leave = executor._assembly.intake.task, threading.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        entered.set()
        assert leave.wait(120)
        return task(*arguments)

    monkeypatch.setattr(executor._assembly.intake, "task", slow)
    other = threading.Thread(target=executor.enqueue_request, args=(Request([4], 1),))
    other.start()
    assert entered.wait(120)
    with pytest.raises(QueueFullError):
        executor.enqueue_request(Request([4], 1))
    leave.set()
    other.join(120)
    assert len(executor.await_responses(1, LIMIT)) == 1


def test_higher_priorities_go_first(start: Start) -> None:
    gate = Gate()
    executor = start(ExecutorConfig(max_batch_size=1), before_step=gate)
    executor.gate = gate  # type: ignore[attr-defined]
    first = executor.enqueue_request(Request([4], 1))
    assert gate.reached.wait(120)
    low, high, middle = executor.enqueue_requests(
        [Request([4], 1, priority=0.1), Request([4], 1, priority=0.9), Request([4], 1)]
    )
    gate.open.set()
    order: list[int] = []
    while len(order) < 4:
        order += [response.request_id for response in executor.await_responses(LIMIT)]
    assert order == [first, high, middle, low]


def test_another_beam_width_waits_until_the_first_is_done_and_is_overtaken(start: Start) -> None:
    gate = Gate()
    executor = start(ExecutorConfig(max_beam_width=3, iter_stats_max_iterations=100), before_step=gate)
    executor.gate = gate  # type: ignore[attr-defined]
    wide = executor.enqueue_request(Request([4], 5, sampling_config=SamplingConfig(3)))
    assert gate.reached.wait(120)
    others = executor.enqueue_requests(
        [Request([4], 5, sampling_config=SamplingConfig(2)), Request([4], 5, sampling_config=SamplingConfig(3))]
    )
    gate.open.set()
    executor.await_responses([wide, *others], LIMIT)
    assert max(stats.num_active_requests for stats in executor.get_latest_iteration_stats()) == 2
    too_wide = _one(executor, Request([4], 5, sampling_config=SamplingConfig(4)))
    assert too_wide.error_msg == "beam_width 4 is more than ExecutorConfig.max_beam_width (3)"
    with pytest.raises(CheckError, match=r"max_beam_width \(9\) is more than the runner's sequences \(8\)"):
        start(ExecutorConfig(max_beam_width=9))


def test_perf_metrics(start: Start) -> None:
    output = OutputConfig(return_perf_metrics=True)
    responses = _all(start(), Request([1, 2, 3, 4], 4, streaming=True, output_config=output))
    metrics = [response.result.request_perf_metrics for response in responses]
    assert all(item is not None for item in metrics)
    assert [item.iter for item in metrics if item] == [0, 1, 2, 3]
    first, last = metrics[0], metrics[-1]
    assert first is not None
    assert last is not None
    assert (first.first_iter, first.last_iter, last.last_iter) == (0, None, 3)
    cache = last.kv_cache_metrics
    assert (cache.num_total_allocated_blocks, cache.num_new_allocated_blocks) == (1, 1)
    assert (cache.num_reused_blocks, cache.num_missed_blocks) == (0, 1)
    assert first.timing_metrics.last_token_time == timedelta()
    times = last.timing_metrics
    assert times.arrival_time < times.first_scheduled_time < times.first_token_time < times.last_token_time


def test_blocks_are_reused_as_the_interface_counts_them(start: Start) -> None:
    executor = start()
    output = OutputConfig(return_perf_metrics=True)
    first = _one(executor, Request(list(range(1, 29)), 8)).result.output_token_ids[0]
    assert len(first) == 36
    result = _one(executor, Request([*first, 1, 1, 1, 1], 1, output_config=output)).result
    assert result.request_perf_metrics is not None
    cache = result.request_perf_metrics.kv_cache_metrics
    assert (cache.num_total_allocated_blocks, cache.num_reused_blocks, cache.num_missed_blocks) == (0, 2, 0)
    assert cache.kv_cache_hit_rate == 1.0


def test_kv_cache_events(start: Start) -> None:
    assert start().get_kv_cache_event_manager() is None
    executor = start(ExecutorConfig(kv_cache_config=KvCacheConfig(event_buffer_max_size=64)))
    manager = executor.get_kv_cache_event_manager()
    assert manager is not None
    (created,) = manager.get_latest_events()
    assert created.event_id == 0
    assert created.window_size == 256
    assert isinstance(created.data, kv_cache.KVCacheCreatedData)
    began = time.monotonic()
    assert manager.get_latest_events(100) == []
    assert time.monotonic() - began > 0.09
    _one(executor, Request([4] * 40, 1))
    kinds = [type(event.data) for event in manager.get_latest_events(60_000)]
    assert kinds
    assert set(kinds) == {kv_cache.KVCacheStoredData}


def test_statistics_of_iterations_and_requests(start: Start) -> None:
    executor = start(ExecutorConfig(request_stats_max_iterations=100, max_batch_size=2))
    _one(executor, Request([4, 2, 4], 3))
    iterations = executor.get_latest_iteration_stats()
    assert [stats.iter for stats in iterations] == [0, 1, 2]
    batching = [stats.inflight_batching_stats for stats in iterations]
    assert [(item.num_context_requests, item.num_ctx_tokens, item.num_gen_requests) for item in batching if item] == [
        (1, 3, 0),
        (0, 0, 1),
        (0, 0, 1),
    ]
    assert [stats.num_completed_requests for stats in iterations] == [0, 0, 1]
    assert iterations[0].num_new_active_requests == 1
    assert iterations[0].kv_cache_stats is not None
    assert iterations[0].kv_cache_stats.tokens_per_block == 32
    assert executor.get_latest_iteration_stats() == []
    per_request = executor.get_latest_request_stats()
    stages = [[stats.stage for stats in item.request_stats] for item in per_request]
    assert stages == [[RequestStage.GENERATION_IN_PROGRESS]] * 2 + [[RequestStage.GENERATION_COMPLETE]]
    assert [item.request_stats[0].num_generated_tokens for item in per_request] == [1, 2, 3]
    assert all(item.request_stats[0].scheduled for item in per_request)
    assert start(ExecutorConfig(iter_stats_max_iterations=0)).get_latest_iteration_stats() == []


def test_prompts_that_cannot_fit_are_errors_and_long_answers_are_cut(start: Start) -> None:
    executor = start(max_seq_len=10)
    text = _one(executor, Request([4] * 10, 1)).error_msg
    assert text == "Prompt length (10) must be less than the maximum sequence length (10), which max_seq_len sets"
    result = _one(executor, Request([4] * 8, 50)).result
    assert (len(result.output_token_ids[0]), result.finish_reasons) == (10, [FinishReason.LENGTH])
    assert "not in the vocabulary" in _one(executor, Request([32], 1)).error_msg
    assert "-1" in _one(executor, Request([-1], 1)).error_msg
    assert "bad word" in _one(executor, Request([1], 1, bad_words=[[99]])).error_msg
    whole = start(ExecutorConfig(max_num_tokens=4))
    assert "enable_chunked_context" in _one(whole, Request([4] * 5, 1)).error_msg
    refused = _one(executor, Request([4], 1, num_return_sequences=1025)).error_msg
    assert refused == "num_return_sequences must be at most 1024, not 1025"
    small = start(ExecutorConfig(kv_cache_config=KvCacheConfig(max_tokens=64)))
    assert "KV blocks" in _one(small, Request([4] * 70, 1)).error_msg


def test_several_sequences_share_the_blocks_that_there_are(start: Start) -> None:
    """Each has as many as one alone would have: they run one after the other where these are all."""
    executor = start(ExecutorConfig(kv_cache_config=KvCacheConfig(max_tokens=96)))
    sampling = SamplingConfig(num_return_sequences=3, top_p=0.5)
    for prompt in (10, 40):
        responses = _all(executor, Request([4] * prompt, 200, sampling_config=sampling))
        assert [len(response.result.output_token_ids[0]) for response in responses] == [96] * 3


def test_what_is_kept_of_a_prompt_survives_a_pause_in_the_middle_of_it(start: Start) -> None:
    wanted = [AdditionalModelOutput("history", True)]
    config = ExecutorConfig(
        additional_model_outputs=wanted,
        enable_chunked_context=True,
        max_num_tokens=8,
        scheduler_config=SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
        kv_cache_config=KvCacheConfig(max_tokens=96, enable_block_reuse=False),
    )
    following = [3 + number % 29 for number in range(61)]
    executor = start(config, logits=table_logits(dict(pairwise(following)), 32))
    output = OutputConfig(return_context_logits=True, additional_model_outputs=wanted)
    first = Request([4] * 30, 30, priority=0.9)
    second = Request(following[:-1], 2, output_config=output)
    vars(second)["prompt_log_probs"] = 1
    answers = executor.await_responses(executor.enqueue_requests([first, second]), LIMIT)
    result = answers[1][0].result
    assert result.context_logits.argmax(axis=1).tolist() == following[1:]
    found = [(rank, likeliest) for _, rank, ((likeliest, _),) in vars(result)["prompt_log_probs"]]
    assert found == [(1, token) for token in following[1:-1]]
    outputs = {output.name: output.output for output in result.additional_outputs}
    assert outputs["context_history"].ravel().tolist() == list(range(60))
    stats = [item.inflight_batching_stats for item in executor.get_latest_iteration_stats()]
    assert sum(item.num_paused_requests for item in stats if item) > 0


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        ({"lora_config": LoraConfig(1)}, "lora_config"),
        ({"position_ids": [0]}, "position_ids"),
        ({"multimodal_embedding": np.zeros((1, 2))}, "multimodal_embedding"),
        ({"encoder_input_token_ids": [1]}, "encoder_input_token_ids"),
        ({"type": RequestType.REQUEST_TYPE_CONTEXT_ONLY}, "REQUEST_TYPE_CONTEXT_ONLY"),
        ({"language_adapter_uid": 1}, "language_adapter_uid"),
        ({"output_config": OutputConfig(return_encoder_output=True)}, "return_encoder_output"),
    ],
)
def test_requests_for_what_cannot_be_done_are_refused_by_name(
    start: Start, arguments: dict[str, Any], name: str
) -> None:
    text = _one(start(), Request([4], 2, **arguments)).error_msg
    assert name in text
    assert "not supported" in text


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (ExecutorConfig(batching_type=BatchingType.STATIC), "deprecated"),
        (ExecutorConfig(parallel_config=ParallelConfig(device_ids=[0, 1])), "device_ids"),
        (ExecutorConfig(parallel_config=ParallelConfig(num_nodes=2)), "num_nodes"),
        (ExecutorConfig(decoding_config=DecodingConfig(medusa_choices=[[0]])), "Medusa"),
        (ExecutorConfig(kv_cache_config=KvCacheConfig(max_attention_window=[8])), "max_attention_window"),
        (ExecutorConfig(kv_cache_config=KvCacheConfig(use_uvm=True)), "use_uvm"),
        (ExecutorConfig(gpu_weights_percent=0.5), "gpu_weights_percent"),
        (ExecutorConfig(enable_trt_overlap=True), "enable_trt_overlap"),
        (ExecutorConfig(debug_config=DebugConfig(debug_input_tensors=True)), "debug_tensors_max_iterations 0"),
    ],
)
def test_configurations_that_cannot_be_done_are_refused_by_name(config: ExecutorConfig, text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        Executor.from_runner(FakeRunner(), config)


@pytest.mark.parametrize(("name", "kind"), [("small.gguf", "GGUF file"), ("model.safetensors", "checkpoint")])
def test_what_is_no_decoder_folder_is_refused_in_the_users_words(name: str, kind: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"GGUF")
    for place in (tmp_path, tmp_path / name):
        with pytest.raises(RuntimeError, match=f"this is a {kind}: 'repoagent convert"):
            Executor(place, ModelType.DECODER_ONLY, ExecutorConfig())
    with pytest.raises(RuntimeError, match="File does not exist"):
        Executor(tmp_path / "none.gguf", ModelType.DECODER_ONLY, ExecutorConfig())


def test_the_other_constructors_are_refused_by_name(tmp_path: Path) -> None:
    config = ExecutorConfig()
    with pytest.raises(RuntimeError, match="File does not exist"):
        Executor(tmp_path / "nowhere", ModelType.DECODER_ONLY, config)
    with pytest.raises(RuntimeError, match="ENCODER_ONLY"):
        Executor(tmp_path, ModelType.ENCODER_ONLY, config)
    with pytest.raises(RuntimeError, match="encoder-decoder"):
        Executor(tmp_path, tmp_path, ModelType.ENCODER_DECODER, config)
    with pytest.raises(RuntimeError, match="encoder-decoder"):
        Executor(b"", "{}", b"", "{}", ModelType.ENCODER_DECODER, config)
    with pytest.raises(RuntimeError, match=r"^Unsupported numpy dtype\.$"):
        Executor(b"", "{}", ModelType.DECODER_ONLY, config, {"a": np.zeros(1, np.float64)})
    with pytest.raises(RuntimeError, match="encoder-decoder"):
        Executor(tmp_path, decoder_model_path=tmp_path, model_type=ModelType.ENCODER_DECODER, executor_config=config)
    for wrong in ({"model_type": ModelType.DECODER_ONLY}, {"executor_config": config, "model_type": 0, "other": 1}):
        with pytest.raises(TypeError, match="no constructor for 1 positional arguments and"):
            Executor(tmp_path, **wrong)
    with pytest.raises(TypeError, match="ExecutorConfig"):
        Executor(tmp_path, ModelType.DECODER_ONLY, None)  # type: ignore[call-overload]


def test_static_batches_start_together(start: Start) -> None:
    gate = Gate()
    scheduling = SchedulerConfig(CapacitySchedulerPolicy.STATIC_BATCH)
    executor = start(ExecutorConfig(scheduler_config=scheduling), before_step=gate)
    executor.gate = gate  # type: ignore[attr-defined]
    first = executor.enqueue_request(Request([4], 6))
    assert gate.reached.wait(120)
    second = executor.enqueue_request(Request([4], 2))
    gate.open.set()
    order: list[int] = []
    while len(order) < 2:
        order += [response.request_id for response in executor.await_responses(LIMIT)]
    assert order == [first, second]
