"""What an ExecutorConfig says about an iteration's tokens, seen in the statistics of iterations."""

import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import pytest
from repoagent_llm import Executor, ExecutorConfig, KvCacheConfig, Request
from repoagent_llm.runner.protocol import Segment

from llm.tests.fake_runner import FakeRunner, table_logits
from repoagent.errors import RepoAgentError

LIMIT = timedelta(seconds=120)
Start = Callable[[ExecutorConfig], Executor]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[Executor] = []

    def make(config: ExecutorConfig) -> Executor:
        logits = table_logits({4: 5, 5: 4}, 32)
        started.append(Executor.from_runner(FakeRunner(logits=logits, max_seq_len=4096), config))
        return started[-1]

    yield make
    for executor in started:
        executor.shutdown()


def _iterations(executor: Executor, lengths: list[int]) -> list[tuple[int, int]]:
    """(prompt tokens, requests that generate) of each iteration, for prompts that come together."""
    ids = executor.enqueue_requests([Request([4] * length, 8) for length in lengths])
    for answers in executor.await_responses(ids, LIMIT):
        assert not answers[-1].has_error()
    stats = [item.inflight_batching_stats for item in executor.get_latest_iteration_stats()]
    return [(item.num_ctx_tokens, item.num_gen_requests) for item in stats if item is not None]


def _burst(config: ExecutorConfig, lengths: list[int], *, step: int = 1) -> list[tuple[int, int]]:
    """The same, where all but the first prompt come while that is read, or in the ``step`` of that number."""
    begun, arrived = threading.Event(), threading.Event()
    steps = itertools.count(1)

    def hold(segments: Sequence[Segment]) -> None:
        if next(steps) == step:
            begun.set()
            assert arrived.wait(LIMIT.total_seconds())

    config.kv_cache_config = KvCacheConfig(enable_block_reuse=False)  # the prompts are alike
    runner = FakeRunner(logits=table_logits({4: 5, 5: 4}, 32), max_seq_len=4096, before_step=hold)
    with Executor.from_runner(runner, config) as executor:
        first, *others = [Request([4] * length, 8) for length in lengths]
        ids = executor.enqueue_requests([first])
        assert begun.wait(LIMIT.total_seconds())
        ids += executor.enqueue_requests(others)
        arrived.set()
        for answers in executor.await_responses(ids, LIMIT):
            assert not answers[-1].has_error()
        stats = [item.inflight_batching_stats for item in executor.get_latest_iteration_stats()]
    return [(item.num_ctx_tokens, item.num_gen_requests) for item in stats if item is not None]


def test_while_nobody_generates_prompts_that_came_together_are_read_together(start: Start) -> None:
    assert _iterations(start(ExecutorConfig()), [300, 300, 300]) == [(900, 0)] + [(0, 3)] * 7


def test_a_burst_is_read_together_though_its_first_request_has_begun() -> None:
    assert _burst(ExecutorConfig(), [100] * 8)[:3] == [(100, 0), (700, 1), (0, 8)]


def test_who_has_two_tokens_is_not_held_up_by_those_who_come() -> None:
    config = ExecutorConfig(enable_chunked_context=True)
    assert _burst(config, [100, 500], step=2)[:4] == [(100, 0), (0, 1), (63, 1), (63, 1)]


@pytest.mark.parametrize("name", ["max_num_tokens", "max_num_tokens_generating"])
def test_numbers_that_were_set_hold_for_a_burst_too(name: str) -> None:
    config = ExecutorConfig(enable_chunked_context=True)
    setattr(config, name, 100)
    assert _burst(config, [100] * 8)[:2] == [(100, 0), (99, 1)]


def test_prompts_are_read_in_small_pieces_while_others_generate(start: Start) -> None:
    config = ExecutorConfig(enable_chunked_context=True, max_num_tokens=10)
    config.max_num_tokens_generating = 4
    found = _iterations(start(config), [2, 17])
    assert found[:4] == [(10, 0), (3, 1), (3, 1), (3, 1)]


def test_one_number_of_tokens_holds_for_all_iterations(start: Start) -> None:
    config = ExecutorConfig(enable_chunked_context=True, max_num_tokens=10)
    assert _iterations(start(config), [2, 17])[:2] == [(10, 0), (9, 1)]


def test_the_smaller_of_both_numbers_holds(start: Start) -> None:
    config = ExecutorConfig(enable_chunked_context=True, max_num_tokens=10)
    config.max_num_tokens_generating = 400
    assert _iterations(start(config), [2, 17])[:2] == [(10, 0), (9, 1)]


@pytest.mark.parametrize("wrong", [0, -3, "12", 1.5, True])
def test_a_wrong_number_of_tokens_is_refused(start: Start, wrong: object) -> None:
    config = ExecutorConfig()
    config.max_num_tokens_generating = wrong
    with pytest.raises(RepoAgentError, match="max_num_tokens_generating must be an integer > 0"):
        start(config)


def test_an_aim_for_the_gap_between_tokens_stands_in_for_a_number(start: Start) -> None:
    config = ExecutorConfig(enable_chunked_context=True, max_num_tokens=200)
    config.token_gap_seconds = 1e-9  # no step is as short
    assert _iterations(start(config), [2, 40])[:3] == [(42, 0), (0, 2), (0, 2)]
    assert _iterations(start(config), [2, 240])[:3] == [(200, 0), (16, 1), (16, 1)]
    config.token_gap_seconds = 1e9
    assert _iterations(start(config), [2, 240])[1] == (42, 1)


@pytest.mark.parametrize("wrong", [0, -1.0, "1", True])
def test_a_wrong_gap_is_refused(start: Start, wrong: object) -> None:
    config = ExecutorConfig()
    config.token_gap_seconds = wrong
    with pytest.raises(RepoAgentError, match="token_gap_seconds must be a number > 0"):
        start(config)
