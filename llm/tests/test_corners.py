"""Corners of what a request may ask for."""

import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm import (
    AdditionalModelOutput,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    FinishReason,
    LogitsPostProcessorConfig,
    ModelType,
    OutputConfig,
    Request,
    Response,
    Result,
    SamplingConfig,
)
from repoagent_llm.engine.response_board import ResponseBoard
from repoagent_llm.kv_cache import KVCacheEventManager, KVCacheRemovedData
from repoagent_llm.runner.protocol import Segment, StepResult
from repoagent_llm.types.executor_errors import CheckError, UnsupportedFeatureError

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


# Requests of unusual shape: each is served, or refused by a text that names what is wrong with it.

LENGTH, VOCABULARY = 16, 32
LARGEST = float(np.finfo(np.float32).max)


@pytest.fixture(scope="module")
def executor() -> Iterator[Executor]:
    runner = FakeRunner(vocab_size=VOCABULARY, max_seq_len=LENGTH, max_sequences=8)
    with Executor.from_runner(runner, ExecutorConfig(max_beam_width=4)) as started:
        yield started
        assert started._assembly.budget.used == runner.open_sequences == 0


def _ask(executor: Executor, prompt: list[int], count: int, **options: Any) -> list[Response]:
    """All responses of a request."""
    request_id = executor.enqueue_request(Request(prompt, count, output_config=NEW_ONLY, **options))
    responses: list[Response] = []
    while not responses or not (responses[-1].has_error() or responses[-1].result.is_final):
        responses += executor.await_responses(request_id, LIMIT)
    return responses


def _said(executor: Executor, prompt: list[int] = PROMPT, count: int = 5, **options: Any) -> list[int]:
    (response,) = _ask(executor, prompt, count, **options)
    return response.result.output_token_ids[0]


def _refusal(executor: Executor, **options: Any) -> str:
    (response,) = _ask(executor, PROMPT, 3, **options)
    assert isinstance(response.error, CheckError | UnsupportedFeatureError)  # the fault of the request
    return response.error_msg


@pytest.mark.parametrize("options", [{}, {"sampling_config": SamplingConfig(3)}, {"num_return_sequences": 3}])
def test_a_prompt_may_leave_room_for_one_token_and_no_less(executor: Executor, options: dict[str, Any]) -> None:
    for response in _ask(executor, [1] * (LENGTH - 1), 5, **options):
        assert {len(tokens) for tokens in response.result.output_token_ids} == {1}
        assert set(response.result.finish_reasons) == {FinishReason.LENGTH}
    for length in (LENGTH, LENGTH + 1):
        (refused,) = _ask(executor, [1] * length, 1, **options)
        wanted = f"Prompt length ({length}) must be less than the maximum sequence length (16), which max_seq_len sets"
        assert refused.error_msg == wanted


def test_drafts_fit_into_the_room_there_is(executor: Executor) -> None:
    drafts = ExternalDraftTokensConfig([1, 2, 3])
    assert len(_said(executor, [1] * (LENGTH - 1), external_draft_tokens_config=drafts)) == 1
    assert len(_said(executor, [1] * (LENGTH - 2), external_draft_tokens_config=drafts)) <= 2


def test_counts_of_tokens(executor: Executor) -> None:
    said = _said(executor, count=9)
    assert _said(executor, count=1) == said[:1]
    assert _said(executor, count=2**31 - 1)[:9] == said
    assert len(_said(executor, count=2**31 - 1)) == LENGTH - len(PROMPT)
    for count in (0, -1):
        with pytest.raises(RuntimeError, match=rf"^Request.max_tokens must be >= 1, not {count}$"):
            Request(PROMPT, count)
    with pytest.raises(RuntimeError, match=r"^Request.input_token_ids must not be empty$"):
        Request(np.zeros(0, np.int32), 1)  # type: ignore[arg-type]


def test_words_that_end_a_text(executor: Executor) -> None:
    first, second, *_ = _said(executor)
    assert _said(executor, stop_words=[[second], [second], [first, second]]) == [first, second]
    assert _said(executor, end_id=second, stop_words=[[second]]) == [first]
    assert _said(executor, end_id=first) == []
    # Only the end token waits for min_tokens, as in TensorRT-LLM.
    assert _said(executor, stop_words=[[second]], sampling_config=SamplingConfig(min_tokens=4)) == [first, second]
    for nobody in (-1, -5, 999):
        assert len(_said(executor, end_id=nobody)) == 5


def test_words_that_must_not_come(executor: Executor) -> None:
    first, second, *_ = _said(executor)
    found = _said(executor, bad_words=[[first, second], [first, second]])
    assert found[0] == first
    assert found[1] != second
    assert _said(executor, bad_words=[[PROMPT[-1], first]])[0] != first
    assert _said(executor, bad_words=[list(range(VOCABULARY)) * 2])[0] == first
    for sampling in (SamplingConfig(), SamplingConfig(top_k=3), SamplingConfig(2)):
        everything = [[token] for token in range(VOCABULARY)]
        assert "no token can follow" in _refusal(executor, bad_words=everything, sampling_config=sampling)


@pytest.mark.parametrize("kind", ["bad", "stop"])
def test_words_that_say_nothing_are_refused(executor: Executor, kind: str) -> None:
    assert _refusal(executor, **{f"{kind}_words": [[5], []]}) == f"{kind} word 1 is empty"
    for token in (-1, VOCABULARY):
        text = _refusal(executor, **{f"{kind}_words": [[5, token]]})
        assert text == f"{kind} word [5, {token}] has a token that is not in the vocabulary of 32 tokens"
    none: dict[str, Any] = {f"{kind}_words": []}
    assert len(_said(executor, **none)) == 5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "sampling",
    [SamplingConfig(), SamplingConfig(top_p=0.9, temperature=0.5), SamplingConfig(2, presence_penalty=-9.0)],
)
@pytest.mark.parametrize("value", [LARGEST, np.inf, 1e300])
def test_a_bias_without_end_repeats_its_token(executor: Executor, sampling: SamplingConfig, value: float) -> None:
    bias = np.zeros(VOCABULARY)
    bias[7], bias[8] = value, -value
    assert _said(executor, embedding_bias=bias, sampling_config=sampling) == [7] * 5


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_the_largest_penalties_are_bans(executor: Executor, name: str, width: int) -> None:
    largest: dict[str, Any] = {name: 3e38}
    said = _said(executor, sampling_config=SamplingConfig(width, **largest), count=10)
    assert not set(said) & set(PROMPT)


@pytest.mark.parametrize(
    ("bias", "text"),
    [
        (np.zeros(31), "embedding bias shape is not as expected: it must be (32,), not (31,)"),
        (np.zeros(32, complex), "embedding bias must hold numbers, not complex128"),
        (np.full(32, "a"), "embedding bias must hold numbers, not <U1"),
        (np.array([0.0] * 9 + [np.nan] * 23), "embedding bias is NaN for token 9"),
        (np.full(32, -np.inf), "choosing a token failed: no token can follow: every logit is -inf, "),
    ],
)
def test_a_bias_that_says_nothing_is_refused(executor: Executor, bias: Any, text: str) -> None:
    assert _refusal(executor, embedding_bias=bias).startswith(text)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e300])
@pytest.mark.parametrize(
    "name",
    [
        "temperature",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "beam_search_diversity_rate",
        "length_penalty",
    ],
)
def test_numbers_that_are_none_are_refused(executor: Executor, name: str, value: float, width: int) -> None:
    """By the class itself, or where the class takes them, as TensorRT-LLM's does, by the executor."""
    number: dict[str, Any] = {name: value}
    with pytest.raises(RuntimeError, match=rf"SamplingConfig\.{name} must be "):
        raise RuntimeError(_refusal(executor, sampling_config=SamplingConfig(width, **number)))


def test_how_many_sequences_a_request_wants(executor: Executor) -> None:
    for number in (1025, 2**31 - 1):
        text = f"num_return_sequences must be at most 1024, not {number}"
        assert _refusal(executor, num_return_sequences=number) == text
        assert _refusal(executor, sampling_config=SamplingConfig(num_return_sequences=number)) == text
    for number in (0, -1):
        with pytest.raises(RuntimeError, match=rf"num_return_sequences must be >= 1, not {number}$"):
            Request(PROMPT, 2, num_return_sequences=number)
    # What the request says itself counts, as in TensorRT-LLM; 1 says nothing.
    for number, expected in ((1, 2), (3, 3)):
        sampling = SamplingConfig(num_return_sequences=2)
        assert len(_ask(executor, PROMPT, 2, num_return_sequences=number, sampling_config=sampling)) == expected
        beams = SamplingConfig(4, num_return_sequences=2)
        (response,) = _ask(executor, PROMPT, 2, num_return_sequences=number, sampling_config=beams)
        assert len(response.result.output_token_ids) == expected


def test_time_that_is_over_before_it_begins(executor: Executor) -> None:
    for time in (timedelta(-1), timedelta(0)):
        (response,) = _ask(executor, PROMPT, 3, allotted_time_ms=time)
        assert (response.result.output_token_ids, response.result.finish_reasons) == ([[]], [FinishReason.TIMED_OUT])
    assert len(_said(executor, allotted_time_ms=timedelta.max)) == 5


def test_waits_longer_than_any_clock_go(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def take_any(board: ResponseBoard, seconds: float) -> list[Response]:
        limits.append(seconds)
        return []

    monkeypatch.setattr(ResponseBoard, "take_any", take_any)
    for timeout in (timedelta.max, timedelta(-1)):
        assert executor.await_responses(timeout) == []
    assert limits == [threading.TIMEOUT_MAX, -86400.0]

    events = KVCacheEventManager(4, LENGTH)
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.extend(events.get_latest_events(timedelta.max)))
    waiting.start()
    events.add(KVCacheRemovedData([1]))
    waiting.join(60)
    assert [event.data for event in found] == [KVCacheRemovedData([1])]
    assert events.get_latest_events(-1) == []


def test_arguments_of_the_wrong_kind(executor: Executor) -> None:
    ids = executor.enqueue_requests(Request(PROMPT, 1) for _ in range(2))  # type: ignore[arg-type]
    assert len(executor.await_responses(ids, LIMIT)) == 2
    with pytest.raises(TypeError, match="takes Requests, not a NoneType"):
        executor.enqueue_requests([Request(PROMPT, 1), None])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="takes an id, ids or a timedelta, not a float"):
        executor.await_responses(5.0)  # type: ignore[call-overload]
    with pytest.raises(TypeError):
        executor.get_num_responses_ready("1")  # type: ignore[arg-type]
    assert executor.get_num_responses_ready() == 0


def test_executors_that_could_not_keep_their_word() -> None:
    with pytest.raises(TypeError, match=r"^Executor needs a ModelType, not 0$"):
        Executor("nowhere", 0, ExecutorConfig())  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="managed_weights must be a mapping"):
        Executor(b"", "{}", ModelType.DECODER_ONLY, ExecutorConfig(), None)  # type: ignore[call-overload]
    processors = LogitsPostProcessorConfig({"mine": None})  # type: ignore[dict-item]
    with pytest.raises(RuntimeError, match=r"processor_map\['mine'\] must be callable, not None"):
        Executor.from_runner(FakeRunner(), ExecutorConfig(logits_post_processor_config=processors))
    wanted = [AdditionalModelOutput("history"), AdditionalModelOutput("future")]
    with pytest.raises(RuntimeError, match=r"additional_model_outputs: 'future' is not an output of .* \(history\)"):
        Executor.from_runner(FakeRunner(), ExecutorConfig(additional_model_outputs=wanted))
