"""Requests of unusual shape: each is served, or refused by a text that names what is wrong with it."""

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import numpy as np
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
    SamplingConfig,
)
from repoagent_llm.engine.response_board import ResponseBoard
from repoagent_llm.kv_cache import KVCacheEventManager, KVCacheRemovedData
from repoagent_llm.types.executor_errors import CheckError, UnsupportedFeatureError

from llm.tests.fake_runner import FakeRunner

LIMIT = timedelta(seconds=120)
PROMPT = [1, 2, 3]
LENGTH, VOCABULARY = 16, 32
NEW_ONLY = OutputConfig(exclude_input_from_output=True)
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
    for number in (9, 2**31 - 1):
        text = f"the request needs {number} sequences at once; this executor has 8"
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
