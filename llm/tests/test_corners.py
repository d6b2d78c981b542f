"""Corners of what a request may ask for."""

from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm import (
    AdditionalModelOutput,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    FinishReason,
    OutputConfig,
    Request,
    Response,
    Result,
    SamplingConfig,
)
from repoagent_llm.runner.protocol import Segment, StepResult

from llm.tests.fake_runner import FakeRunner, hashed_logits

LIMIT = timedelta(seconds=120)
NEW_ONLY = OutputConfig(exclude_input_from_output=True)
PROMPT = [1, 2, 3]
LogitsFunction = Callable[[list[int]], npt.NDArray[np.float32]]
Ask = Callable[[Request], Response]


@pytest.fixture
def ask_of() -> Iterator[Callable[[LogitsFunction], Ask]]:
    """``ask_of(logits)``: a function that sends a request to an executor over this model, and waits."""
    executors = []

    def make(logits: LogitsFunction) -> Ask:
        executor = Executor.from_runner(FakeRunner(logits=logits), ExecutorConfig(max_beam_width=4))
        executors.append(executor)
        return lambda request: executor.await_responses(executor.enqueue_request(request), LIMIT)[-1]

    yield make
    for executor in executors:
        executor.shutdown()


@pytest.fixture
def ask(ask_of: Callable[[LogitsFunction], Ask]) -> Ask:
    return ask_of(hashed_logits(32))


def test_a_min_p_of_zero_asks_for_nothing(ask: Ask) -> None:
    plain = ask(Request(PROMPT, 8)).result.output_token_ids
    assert ask(Request(PROMPT, 8, sampling_config=SamplingConfig(min_p=0.0))).result.output_token_ids == plain


@pytest.mark.filterwarnings("error")
def test_the_lowest_temperatures_draw_what_greedy_search_finds(ask: Ask) -> None:
    plain = ask(Request(PROMPT, 8)).result.output_token_ids
    cold = SamplingConfig(top_p=0.9, temperature=1e-38)
    assert ask(Request(PROMPT, 8, sampling_config=cold)).result.output_token_ids == plain


def test_a_request_says_how_many_of_its_beams_come_back(ask: Ask) -> None:
    beams = SamplingConfig(3)
    assert len(ask(Request(PROMPT, 4, sampling_config=beams, num_return_sequences=2)).result.output_token_ids) == 2
    too_many = ask(Request(PROMPT, 4, sampling_config=beams, num_return_sequences=4))
    assert too_many.error_msg == "num_return_sequences must be <= beam_width (3), not 4"


@pytest.mark.parametrize(
    ("value", "text"),
    [(np.nan, "infinite or NaN"), (np.inf, "infinite or NaN"), (-np.inf, "-inf only")],
)
def test_draft_logits_that_say_nothing_are_refused(ask: Ask, value: float, text: str) -> None:
    logits = np.zeros((2, 32), np.float32)
    logits[1] = value
    drafts = ExternalDraftTokensConfig([1, 2], logits)
    sampling = SamplingConfig(top_p=0.9)
    refused = ask(Request(PROMPT, 4, sampling_config=sampling, external_draft_tokens_config=drafts))
    assert text in refused.error_msg
    words = ExternalDraftTokensConfig([1], np.full((1, 32), "a"))
    assert "must be numbers, not <U1" in ask(Request(PROMPT, 4, external_draft_tokens_config=words)).error_msg


def test_additional_outputs_keep_their_element_type() -> None:
    class Counting(FakeRunner):
        def step(self, segments: Sequence[Segment]) -> StepResult:
            result = super().step(segments)
            result.extras = [{name: value.astype(np.int64) for name, value in item.items()} for item in result.extras]
            return result

    wanted = OutputConfig(additional_model_outputs=[AdditionalModelOutput("history", gather_context=True)])
    with Executor.from_runner(Counting(), ExecutorConfig()) as executor:
        (response,) = executor.await_responses(
            executor.enqueue_request(Request(PROMPT, 2, output_config=wanted)), LIMIT
        )
    assert [output.output.dtype for output in response.result.additional_outputs] == [np.int64] * 2


def test_many_stop_words_do_not_use_up_what_beams_may_go_on_with(ask_of: Callable[[LogitsFunction], Ask]) -> None:
    def logits(history: list[int]) -> npt.NDArray[np.float32]:
        row = np.zeros(32, np.float32)
        row[10:20] = 5.0
        row[20] = 50.0 if history[-1] == 20 else 4.0
        return row

    # The average log-probability of the text that goes on is far better than that of any that stops at once.
    sampling = SamplingConfig(2, length_penalty=1.0, early_stopping=2)
    stop_words = [[token] for token in range(10, 20)]
    request = Request(PROMPT, 10, sampling_config=sampling, stop_words=stop_words, output_config=NEW_ONLY)
    assert ask_of(logits)(request).result.output_token_ids[0] == [20] * 10


def test_a_length_penalty_beyond_all_numbers_is_refused(ask: Ask) -> None:
    sampling = SamplingConfig(2, length_penalty=1e5)
    assert "is too large" in ask(Request(PROMPT, 4, sampling_config=sampling, streaming=True)).error_msg
    large = SamplingConfig(2, length_penalty=100.0)
    assert len(ask(Request(PROMPT, 4, sampling_config=large)).result.output_token_ids) == 2


def _ends_after(length: int) -> LogitsFunction:
    """Behind ``length`` tokens of history the end token, 7, comes for certain."""
    hashed = hashed_logits(32)

    def logits(history: list[int]) -> npt.NDArray[np.float32]:
        row = hashed(history)
        row[7] = 1000.0 if len(history) >= length else -1000.0
        return row

    return logits


def test_beams_that_all_end_at_the_length_limit_are_counted_and_harm_nobody() -> None:
    config = ExecutorConfig(max_beam_width=2, request_stats_max_iterations=10)
    sampling = SamplingConfig(2, early_stopping=0)
    with Executor.from_runner(FakeRunner(logits=_ends_after(5)), config) as executor:
        ids = executor.enqueue_requests(
            [
                Request(prompt, tokens, end_id=7, sampling_config=sampling, output_config=NEW_ONLY)
                for prompt, tokens in ((PROMPT, 3), (PROMPT[:1], 4))
            ]
        )
        ended, longer = (answer[0].result for answer in executor.await_responses(ids, LIMIT))
    assert [len(text) for text in ended.output_token_ids] == [2, 2]
    assert ended.finish_reasons == [FinishReason.END_ID] * 2
    assert longer.finish_reasons == [FinishReason.LENGTH] * 2


def test_a_stream_of_beams_is_final_once() -> None:
    """The best texts so far may both have ended while the search goes on."""
    hashed = hashed_logits(32)

    def logits(history: list[int]) -> npt.NDArray[np.float32]:
        row = hashed(history) * np.float32(0.1)
        row[7] = 1.0 if len(history) > 4 else 0.0
        return row

    sampling = SamplingConfig(2, early_stopping=2, length_penalty=2.0)
    with Executor.from_runner(FakeRunner(logits=logits), ExecutorConfig(max_beam_width=2)) as executor:
        request_id = executor.enqueue_request(Request(PROMPT, 10, end_id=7, sampling_config=sampling, streaming=True))
        seen: list[Result] = []
        while not seen or not seen[-1].is_final:
            seen += [response.result for response in executor.await_responses(request_id, LIMIT)]
    assert any(FinishReason.NOT_FINISHED not in result.finish_reasons for result in seen[:-1])
    assert [result.is_sequence_final for result in seen] == [False] * (len(seen) - 1) + [True]


def test_tensors_of_a_text_that_ended_at_once_keep_their_other_axes() -> None:
    outputs = OutputConfig(return_generation_logits=True, additional_model_outputs=[AdditionalModelOutput("history")])
    with Executor.from_runner(FakeRunner(logits=_ends_after(1)), ExecutorConfig()) as executor:
        request_id = executor.enqueue_request(Request(PROMPT, 4, end_id=7, output_config=outputs))
        (response,) = executor.await_responses(request_id, LIMIT)
    assert response.result.generation_logits.shape == (1, 0, 32)
    assert response.result.additional_outputs[0].output.shape == (1, 0, 1)


def test_a_beam_that_nothing_can_follow_leaves_the_others_to_go_on(ask_of: Callable[[LogitsFunction], Ask]) -> None:
    hashed = hashed_logits(32)

    def logits(history: list[int]) -> npt.NDArray[np.float32]:
        row = hashed(history)
        row[5] = 100.0
        return np.full(32, -np.inf, np.float32) if 5 in history else row

    response = ask_of(logits)(Request(PROMPT, 2, sampling_config=SamplingConfig(2), output_config=NEW_ONLY))
    texts = response.result.output_token_ids
    assert [len(text) for text in texts] == [2, 2]
    assert 5 not in {text[0] for text in texts}
