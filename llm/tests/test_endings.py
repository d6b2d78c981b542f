"""Models with several end tokens: each of them ends a text, none is part of it, none comes before ``min_tokens``."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    DecodingConfig,
    DraftTargetDecodingConfig,
    Endings,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
    FinishReason,
    KvCacheConfig,
    LookaheadDecodingConfig,
    OutputConfig,
    Request,
    Result,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.runner.ort import OrtRunner

from llm.tests.reference import Reference, Scaling

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


# Penalties count prompt and answer alike and come after the temperature: on every way to a token.

LIMIT = timedelta(seconds=120)
# The prompt has tokens that greedy search would say, some of them several times.
REPEATED = [53, 69, 5, 53, 53, 17, 69, 8, 30, 53]
SCALINGS = [
    Scaling(presence=2.0),
    Scaling(frequency=0.7),
    Scaling(frequency=-0.4),
    Scaling(0.6, 1.2, 0.5, 0.3),
    Scaling(1.7, 0.9, -0.5, 0.8),
]
every_scaling = pytest.mark.parametrize("scaling", SCALINGS, ids=str)
Serve = Callable[..., list[Result]]


def _sampling(scaling: Scaling, width: int = 1, **more: Any) -> SamplingConfig:
    return SamplingConfig(
        width,
        temperature=scaling.temperature,
        repetition_penalty=scaling.repetition,
        presence_penalty=scaling.presence,
        frequency_penalty=scaling.frequency,
        **more,
    )


def _request(scaling: Scaling, count: int, width: int = 1, prompt: list[int] = REPEATED, **more: Any) -> Request:
    wanted = OutputConfig(exclude_input_from_output=True, return_log_probs=True)
    return Request(prompt, count, sampling_config=_sampling(scaling, width), output_config=wanted, **more)


@pytest.fixture
def serve(open_runner: Callable[..., OrtRunner]) -> Serve:
    """``serve(requests, config)``: the first result of each; with ``drafted`` the model drafts for itself."""

    def run(requests: list[Request], config: ExecutorConfig | None = None, drafted: bool = False) -> list[Result]:
        def runner() -> OrtRunner:
            return open_runner("llama", max_sequences=8, max_seq_len=160)

        config = config or ExecutorConfig(max_beam_width=4)
        with Executor.from_runner(runner(), config, runner() if drafted else None) as executor:
            answers = executor.await_responses(executor.enqueue_requests(requests), LIMIT)
            return [answer[0].result for answer in answers]

    return run


@pytest.fixture
def model(reference: Callable[[str], Reference]) -> Reference:
    return reference("llama")


@every_scaling
def test_greedy_search_and_its_log_probs(scaling: Scaling, serve: Serve, model: Reference) -> None:
    (result,) = serve([_request(scaling, 20)])
    said = result.output_token_ids[0]
    assert said == model.greedy(REPEATED, 20, scaling=scaling)
    expected = [model.log_probs([*REPEATED, *said[:i]], scaling)[token] for i, token in enumerate(said)]
    assert result.log_probs is not None
    assert result.log_probs[0] == pytest.approx(expected, abs=1e-3)
    assert said != model.greedy(REPEATED, 20)  # else the test would show nothing


@every_scaling
def test_drawn_tokens_have_their_probabilities(scaling: Scaling, serve: Serve, model: Reference) -> None:
    requests = [_request(scaling, 12) for _ in range(4)]
    for seed, request in enumerate(requests):
        request.sampling_config = _sampling(scaling, top_p=0.999999, seed=seed)
    for result in serve(requests):
        said = result.output_token_ids[0]
        expected = [model.log_probs([*REPEATED, *said[:i]], scaling)[token] for i, token in enumerate(said)]
        assert result.log_probs is not None
        assert result.log_probs[0] == pytest.approx(expected, abs=1e-3)


@every_scaling
def test_beams(scaling: Scaling, serve: Serve, model: Reference) -> None:
    expected = model.beams(REPEATED, 8, [3], scaling)
    (result,) = serve([_request(scaling, 8, 3)])
    assert result.output_token_ids == [text for text, _ in expected]
    assert result.cum_log_probs == pytest.approx([total for _, total in expected], abs=1e-2)


@every_scaling
def test_drafts_of_all_kinds(scaling: Scaling, serve: Serve, model: Reference) -> None:
    said = model.greedy(REPEATED, 20, scaling=scaling)
    external = ExternalDraftTokensConfig([*said[:5], 95])
    (result,) = serve([_request(scaling, 7, external_draft_tokens_config=external)])
    assert result.output_token_ids[0][:6] == said[:6]

    drafting = ExecutorConfig()
    drafting.speculative_config = DraftTargetDecodingConfig(max_draft_len=3)
    assert serve([_request(scaling, 20)], drafting, drafted=True)[0].output_token_ids == [said]
    lookahead = DecodingConfig(lookahead_decoding_config=LookaheadDecodingConfig(3, 3, 3))
    assert serve([_request(scaling, 20)], ExecutorConfig(decoding_config=lookahead))[0].output_token_ids == [said]


@pytest.mark.slow
def test_in_company_in_pieces_and_after_pauses(open_runner: Callable[..., OrtRunner], model: Reference) -> None:
    prompts = [REPEATED[i:] + REPEATED * 3 for i in range(len(SCALINGS))]
    config = ExecutorConfig(
        enable_chunked_context=True,
        max_num_tokens=16,
        scheduler_config=SchedulerConfig(CapacitySchedulerPolicy.MAX_UTILIZATION),
        kv_cache_config=KvCacheConfig(max_tokens=160, enable_block_reuse=False),
    )
    requests = [_request(scaling, 30, prompt=prompt) for scaling, prompt in zip(SCALINGS, prompts, strict=True)]
    with Executor.from_runner(open_runner("llama", max_sequences=8, max_seq_len=160), config) as executor:
        answers = executor.await_responses(executor.enqueue_requests(requests), LIMIT)
        stats = [item.inflight_batching_stats for item in executor.get_latest_iteration_stats()]
    assert sum(item.num_paused_requests for item in stats if item) > 0
    for scaling, prompt, (response,) in zip(SCALINGS, prompts, answers, strict=True):
        assert response.result.output_token_ids == [model.greedy(prompt, 30, scaling=scaling)]
