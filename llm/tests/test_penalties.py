"""Penalties count prompt and answer alike and come after the temperature: on every way to a token."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    DecodingConfig,
    DraftTargetDecodingConfig,
    Executor,
    ExecutorConfig,
    ExternalDraftTokensConfig,
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

LIMIT = timedelta(seconds=120)
# The prompt has tokens that greedy search would say, some of them several times.
PROMPT = [53, 69, 5, 53, 53, 17, 69, 8, 30, 53]
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


def _request(scaling: Scaling, count: int, width: int = 1, prompt: list[int] = PROMPT, **more: Any) -> Request:
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
    assert said == model.greedy(PROMPT, 20, scaling=scaling)
    expected = [model.log_probs([*PROMPT, *said[:i]], scaling)[token] for i, token in enumerate(said)]
    assert result.log_probs is not None
    assert result.log_probs[0] == pytest.approx(expected, abs=1e-3)
    assert said != model.greedy(PROMPT, 20)  # else the test would show nothing


@every_scaling
def test_drawn_tokens_have_their_probabilities(scaling: Scaling, serve: Serve, model: Reference) -> None:
    requests = [_request(scaling, 12) for _ in range(4)]
    for seed, request in enumerate(requests):
        request.sampling_config = _sampling(scaling, top_p=0.999999, seed=seed)
    for result in serve(requests):
        said = result.output_token_ids[0]
        expected = [model.log_probs([*PROMPT, *said[:i]], scaling)[token] for i, token in enumerate(said)]
        assert result.log_probs is not None
        assert result.log_probs[0] == pytest.approx(expected, abs=1e-3)


@every_scaling
def test_beams(scaling: Scaling, serve: Serve, model: Reference) -> None:
    expected = model.beams(PROMPT, 8, [3], scaling)
    (result,) = serve([_request(scaling, 8, 3)])
    assert result.output_token_ids == [text for text, _ in expected]
    assert result.cum_log_probs == pytest.approx([total for _, total in expected], abs=1e-2)


@every_scaling
def test_drafts_of_all_kinds(scaling: Scaling, serve: Serve, model: Reference) -> None:
    said = model.greedy(PROMPT, 20, scaling=scaling)
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
    prompts = [PROMPT[i:] + PROMPT * 3 for i in range(len(SCALINGS))]
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
