"""Which requests run in an iteration, and counting blocks."""

from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest
from repoagent_llm import (
    CapacitySchedulerPolicy,
    Executor,
    ExecutorConfig,
    KvCacheConfig,
    OutputConfig,
    Request,
    SamplingConfig,
    SchedulerConfig,
)
from repoagent_llm.engine import scheduler
from repoagent_llm.engine.blocks import BlockBudget
from repoagent_llm.engine.task import Task
from repoagent_llm.runner.block_pool import blocks_for
from repoagent_llm.runner.protocol import DecodeRound, Segment

from llm.tests.fake_runner import FakeRunner


def test_blocks_are_counted_by_request() -> None:
    budget = BlockBudget(4)
    one, two = (cast(Task, SimpleNamespace(id=number)) for number in (1, 2))
    assert budget.grow(one, 3)
    assert not budget.grow(two, 2)
    assert budget.grow(one, 2)
    assert (budget.free, budget.used) == (2, 2)
    budget.release(one)
    assert (budget.free, budget.used) == (4, 0)
    assert [blocks_for(tokens) for tokens in (0, 1, 32, 33)] == [0, 1, 1, 2]


# Rounds: their kept plans give the answers that plans made anew give.

LIMIT = timedelta(seconds=120)


def _requests() -> list[Request]:
    samplings: list[dict[str, Any]] = [{}, {"top_p": 0.9}, {"repetition_penalty": 1.4}, {"num_return_sequences": 2}, {}]
    return [
        Request(
            list(range(3, 4 + 5 * number)),
            10 + 7 * number,
            end_id=2,
            stop_words=[[number]],
            streaming=number % 2 == 0,
            sampling_config=SamplingConfig(**samplings[number]),
            output_config=OutputConfig(return_log_probs=number == 2),
        )
        for number in range(5)
    ]


def _answers(config: ExecutorConfig, seen: list[Sequence[Segment]]) -> list[list[Any]]:
    """What each request was answered, response by response."""
    runner = FakeRunner(max_seq_len=160, before_step=lambda segments: seen.append(segments))
    with Executor.from_runner(runner, config) as executor:
        ids = executor.enqueue_requests(_requests())
        found: dict[int, list[Any]] = {request_id: [] for request_id in ids}
        left = set(ids)
        while left:
            for response in executor.await_responses(LIMIT):
                values = dict(response.result.__dict__)
                found[response.request_id].append(values)
                if response.result.is_final:
                    left.remove(response.request_id)
        return list(found.values())


@pytest.mark.parametrize("policy", list(CapacitySchedulerPolicy))
@pytest.mark.parametrize("together", [5, 2])
def test_answers_are_those_of_plans_made_anew(
    policy: CapacitySchedulerPolicy, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = ExecutorConfig(
        max_batch_size=together,
        scheduler_config=SchedulerConfig(policy),
        kv_cache_config=KvCacheConfig(max_tokens=192),
    )
    steps: list[Sequence[Segment]] = []
    kept = _answers(config, steps)
    assert any(isinstance(segments, DecodeRound) for segments in steps)
    monkeypatch.setattr(scheduler, "_in_step", lambda task: False)
    plain: list[Sequence[Segment]] = []
    assert _answers(config, plain) == kept
    assert not any(isinstance(segments, DecodeRound) for segments in plain)
    assert len(plain) == len(steps)


@pytest.mark.parametrize("chunked", [True, False])
def test_a_prompt_of_which_all_logits_are_wanted_is_read_in_small_pieces(chunked: bool) -> None:
    """Of a large vocabulary the logits of a whole iteration would take more than a gigabyte."""
    steps: list[Sequence[Segment]] = []
    runner = FakeRunner(max_seq_len=800, before_step=lambda segments: steps.append(segments))
    requests = [Request([4] * 600, 1), Request([5] * 600, 1)]
    vars(requests[0])["prompt_log_probs"] = 1
    with Executor.from_runner(runner, ExecutorConfig(enable_chunked_context=chunked)) as one:
        for responses in one.await_responses(one.enqueue_requests(requests), LIMIT):
            assert responses[0].result.is_final
            found = vars(responses[0].result).get("prompt_log_probs", [None] * 599)
            assert len(found) == 599
    pieces = [
        [len(segment.tokens) for segment in segments if segment.tokens[0] == token]
        for segments in steps
        for token in (4, 5)
    ]
    assert [piece for (piece,) in filter(None, pieces)] == ([256, 600, 256, 88] if chunked else [600, 600])


def test_a_round_is_kept_while_the_same_requests_run() -> None:
    steps: list[Sequence[Segment]] = []
    with Executor.from_runner(FakeRunner(before_step=lambda segments: steps.append(segments)), ExecutorConfig()) as one:
        for responses in one.await_responses(one.enqueue_requests([Request([4], 6), Request([5], 9)]), LIMIT):
            assert responses[0].result.is_final
    prompts, *rounds = steps
    assert not isinstance(prompts, DecodeRound)
    # Five more tokens of both, then three of one.
    assert [segments is rounds[0] for segments in rounds] == [True] * 5 + [False] * 3
    assert all(segments is rounds[-1] for segments in rounds[5:])
