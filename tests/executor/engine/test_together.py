"""Requests whose tokens are drawn together: the same texts as alone, and a bad row hurts no other."""

from datetime import timedelta
from typing import Any

import numpy as np
import pytest

from repoagent.executor import Executor, ExecutorConfig, OutputConfig, Request, Result, SamplingConfig
from repoagent.executor.engine import drawing_together, engine, together
from repoagent.executor.runner.fake import FakeRunner, hashed_logits

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
# How many of them sample by top-p alone, and by a top-k of 5.
TOP_P, TOP_K = 5, 4


def _requests(**options: Any) -> list[Request]:
    return [
        Request([3, 4 + number], 12, sampling_config=SamplingConfig(**sampling), **options)
        for number, sampling in enumerate(SAMPLING)
    ]


def _texts(requests: list[Request]) -> list[Any]:
    runner = FakeRunner(logits=hashed_logits(300), vocab_size=300, max_sequences=16)
    with Executor.from_runner(runner, ExecutorConfig()) as executor:
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

    def note(name: str) -> None:
        real = getattr(drawing_together, name)

        def noting(rows: Any, *rest: Any) -> Any:
            noted.append(len(rows))
            return real(rows, *rest)

        monkeypatch.setattr(together, name, noting)

    note("draw_together")
    note("draw_largest_together")
    return noted


def test_texts_are_those_of_requests_alone(sizes: list[int]) -> None:
    at_once = _texts(_requests())
    assert {TOP_P, TOP_K} <= set(sizes)
    sizes.clear()
    assert at_once == [_texts([request])[0] for request in _requests()]
    assert not sizes, "one alone goes the plain way"


def test_log_probs_are_those_of_the_plain_way(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = OutputConfig(return_log_probs=True)
    at_once = _texts(_requests(output_config=wanted))
    monkeypatch.setattr(engine, "settle_together", lambda ready: None)
    assert at_once == _texts(_requests(output_config=wanted))


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
