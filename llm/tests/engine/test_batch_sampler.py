"""Tokens drawn in one run: the texts of requests alone and of the plain way; a bad row hurts no other."""

from datetime import timedelta
from typing import Any

import numpy as np
import pytest
from repoagent_llm import (
    DraftTargetDecodingConfig,
    Executor,
    ExecutorConfig,
    OutputConfig,
    Request,
    Result,
    SamplingConfig,
)
from repoagent_llm.engine import batch_sampler, intake

from llm.tests.fake_runner import FakeRunner, hashed_logits

LIMIT = timedelta(seconds=120)
SAMPLING: list[dict[str, Any]] = [
    {"top_p": 0.9},
    {"top_p": 0.9, "seed": 1},
    {"top_p": 0.4, "temperature": 0.5},
    {"top_p": 0.95, "top_p_decay": 0.8, "top_p_min": 0.2},
    {"top_p": 0.01, "temperature": 3.0},
    {"top_p": 0.9, "repetition_penalty": 1.3},
    {"top_p": 0.9, "top_k": 5},
    {"top_k": 5, "seed": 2},
    {"top_p": 0.7, "top_k": 5, "temperature": 2.0},
    {"top_p": 0.99, "top_k": 5, "top_p_decay": 0.7, "seed": 3},
    {"top_p": 0.5, "top_k": 6},
    {"top_p": 0.9, "num_return_sequences": 2},
    {},
]
# How many of them sample by top-p alone, and with a top-k.
TOP_P, TOP_K = 5, 5


def _requests(**options: Any) -> list[Request]:
    return [
        Request([3, 4 + number], 12, sampling_config=SamplingConfig(**sampling), **options)
        for number, sampling in enumerate(SAMPLING)
    ]


def _runner() -> FakeRunner:
    return FakeRunner(logits=hashed_logits(300), vocab_size=300, max_sequences=16)


def _texts(requests: list[Request], crowd: int = 0) -> list[Any]:
    """What the model says; it guesses for itself while no more than ``crowd`` requests run."""
    config = ExecutorConfig()
    config.speculative_config = DraftTargetDecodingConfig(3, max_concurrency=crowd) if crowd else None
    with Executor.from_runner(_runner(), config, _runner() if crowd else None) as executor:
        ids = executor.enqueue_requests(requests)
        found: dict[int, list[Result | str]] = {request_id: [] for request_id in ids}
        left = set(ids)
        while left:
            for response in executor.await_responses(LIMIT):
                failed = response.has_error()
                found[response.request_id].append(response.error_msg if failed else response.result)
                if failed or response.result.is_final:
                    left.remove(response.request_id)
    return [_comparable(results) for results in found.values()]


def _comparable(results: list[Result | str]) -> Any:
    texts = [result for result in results if isinstance(result, Result)]
    texts.sort(key=lambda result: result.sequence_index or 0)
    return [(result.output_token_ids, result.log_probs) for result in texts] or results


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many were drawn at once, each time."""
    noted: list[int] = []
    real = batch_sampler._Lot._run

    def noting(lot: batch_sampler._Lot) -> None:
        noted.append(len(lot._samplers))
        real(lot)

    monkeypatch.setattr(batch_sampler._Lot, "_run", noting)
    return noted


def test_texts_are_those_of_requests_alone(sizes: list[int]) -> None:
    at_once = _texts(_requests())
    assert {TOP_P, TOP_K} <= set(sizes)
    sizes.clear()
    assert at_once == [_texts([request])[0] for request in _requests()]
    assert set(sizes) == {1}
    assert at_once == [_texts([request], crowd=1)[0] for request in _requests()]
    for crowd in (1, 6, len(SAMPLING)):  # few or many of them are drafted for beside others
        assert at_once == _texts(_requests(), crowd)


@pytest.mark.parametrize("streaming", [True, False])
def test_texts_are_those_of_the_plain_way(sizes: list[int], streaming: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = _texts(_requests(streaming=streaming))
    assert sizes
    sizes.clear()
    monkeypatch.setattr(intake, "_needs_no_logits", lambda task: False)
    assert _texts(_requests(streaming=streaming)) == drawn
    assert not sizes


def test_log_probs_do_not_change_the_texts() -> None:
    at_once = _texts(_requests())
    with_log_probs = _texts(_requests(output_config=OutputConfig(return_log_probs=True)))
    assert [[ids for ids, _ in text] for text in with_log_probs] == [[ids for ids, _ in text] for text in at_once]


def test_a_model_that_leaves_no_choice_fails_its_requests(sizes: list[int]) -> None:
    def nothing(history: list[int]) -> Any:
        return np.full(300, -np.inf, np.float32)

    with Executor.from_runner(FakeRunner(logits=nothing, vocab_size=300), ExecutorConfig()) as executor:
        ids = executor.enqueue_requests(
            [Request([3], 4, sampling_config=SamplingConfig(**item)) for item in SAMPLING[:9]]
        )
        for responses in executor.await_responses(ids, LIMIT):
            assert "no token can follow" in responses[0].error_msg
    assert sizes


@pytest.mark.parametrize("value", [np.nan, -np.inf])
@pytest.mark.parametrize("victim", [1, 7])
def test_a_row_that_cannot_be_drawn_from_fails_by_itself(sizes: list[int], value: float, victim: int) -> None:
    def spoil(request_id: int, logits: Any, ids: Any, stream: Any, client_id: Any) -> None:
        logits[:] = value

    requests = _requests()
    requests[victim].logits_post_processor = spoil
    found = _texts(requests)
    alone = [_texts([request])[0] for request in _requests()]
    assert {TOP_P, TOP_K} <= set(sizes)
    assert [text for place, text in enumerate(found) if place != victim] == alone[:victim] + alone[victim + 1 :]
