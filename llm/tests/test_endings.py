"""Models with several end tokens: each of them ends a text, none is part of it, none comes before ``min_tokens``."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from repoagent_llm import (
    Endings,
    Executor,
    ExecutorConfig,
    FinishReason,
    OutputConfig,
    Request,
    Result,
    SamplingConfig,
)
from repoagent_llm.runner.ort import OrtRunner

from llm.tests.reference import Reference

PROMPT = [5, 9, 17]


@pytest.fixture
def executor(open_runner: Callable[..., OrtRunner]) -> Iterator[Executor]:
    with Executor.from_runner(open_runner("llama"), ExecutorConfig(max_beam_width=3)) as executor:
        yield executor


def ask(executor: Executor, endings: object = None, **values: Any) -> Result:
    request = Request(PROMPT, 20, output_config=OutputConfig(exclude_input_from_output=True), **values)
    if endings is not None:
        vars(request)["endings"] = endings
    responses = executor.await_responses(executor.enqueue_request(request))
    return responses[0].result


@pytest.fixture
def greedy(reference: Callable[[str], Reference]) -> list[int]:
    """The model's text of 20 tokens; a token at a place of its own ends it nowhere else before."""
    return reference("llama").greedy(PROMPT, 20, -1)


@pytest.mark.parametrize("first", [None, -1, 95])
def test_each_of_several_end_tokens_ends_a_text_and_is_not_part_of_it(
    executor: Executor, greedy: list[int], first: int | None
) -> None:
    end = greedy[5]
    place = greedy.index(end)
    result = ask(executor, Endings([94, end]), end_id=first)
    assert result.output_token_ids == [greedy[:place]]
    assert result.finish_reasons == [FinishReason.END_ID]


def test_a_stop_token_ends_a_text_and_is_part_of_it(executor: Executor, greedy: list[int]) -> None:
    end = greedy[5]
    result = ask(executor, Endings(stop_ids=[end]))
    assert result.output_token_ids == [greedy[: greedy.index(end) + 1]]
    assert result.finish_reasons == [FinishReason.STOP_WORDS]


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("streaming", [False, True])
def test_min_tokens_holds_all_of_them_back(executor: Executor, greedy: list[int], streaming: bool, width: int) -> None:
    """Every token of the text may end it, so that one that were forgotten would come."""
    ends = sorted(set(greedy))
    sampling = SamplingConfig(width, min_tokens=12)
    request = Request(PROMPT, 20, streaming=streaming, sampling_config=sampling, end_id=ends[0])
    vars(request)["endings"] = Endings(ends[1:-1], ends[-1:])
    asked = executor.enqueue_request(request)
    found: list[int] = []
    final = False
    while not final:
        for response in executor.await_responses(asked):
            final = response.result.is_final
            tokens = response.result.output_token_ids[0]
            found = tokens if width > 1 or not streaming else found + tokens
    found = found if streaming else found[len(PROMPT) :]
    assert len(found) >= 12
    assert not set(found[:12]) & set(ends)


def test_beams_end_at_each_of_them(executor: Executor, greedy: list[int]) -> None:
    sampling = SamplingConfig(3)
    whole = ask(executor, sampling_config=sampling)
    end = whole.output_token_ids[0][4]
    one = ask(executor, sampling_config=sampling, end_id=end)
    other = ask(executor, Endings([end]), sampling_config=sampling, end_id=-1)
    assert other.output_token_ids == one.output_token_ids
    assert FinishReason.END_ID in other.finish_reasons


def test_what_is_no_ending_is_refused_by_name(executor: Executor) -> None:
    request = Request(PROMPT, 3)
    vars(request)["endings"] = [2]
    (response,) = executor.await_responses(executor.enqueue_request(request))
    assert response.error_msg == "Request.endings must be Endings, not list"
    with pytest.raises(TypeError, match=r"Endings\.end_ids"):
        Endings(["a"])  # type: ignore[list-item]
