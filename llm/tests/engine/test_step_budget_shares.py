"""Sharing an iteration's tokens among prompts."""

import pytest
from repoagent_llm.engine.step_budget import split_budget
from repoagent_llm.types.enums import ContextChunkingPolicy

FIRST = ContextChunkingPolicy.FIRST_COME_FIRST_SERVED
EQUAL = ContextChunkingPolicy.EQUAL_PROGRESS


def test_a_short_prompt_is_read_beside_a_long_one() -> None:
    assert split_budget([12_000, 30, 200], 256, None, chunked=True, peers=3) == [128, 30, 98]
    assert split_budget([20, 12_000, 30], 256, None, chunked=True, peers=3) == [20, 206, 30]
    assert split_budget([100, 100, 100], 128, None, chunked=True, peers=3) == [100, 28, 0]
    assert split_budget([36, 100, 100], 128, None, chunked=True, peers=3) == [36, 92, 0]
    assert split_budget([12_000, 30, 200], 1, None, chunked=True, peers=3) == [1, 0, 0]


def test_a_prompt_of_less_priority_waits_for_the_others() -> None:
    assert split_budget([12_000, 30, 10], 256, None, chunked=True, peers=2) == [226, 30, 0]
    assert split_budget([100, 30, 10, 500], 256, None, chunked=True, peers=2) == [100, 30, 10, 116]


def test_whole_prompts_are_taken_in_order_and_the_first_always() -> None:
    assert split_budget([300, 10], 128, FIRST, chunked=False) == [300, 0]
    assert split_budget([100, 20, 30, 5], 128, FIRST, chunked=False) == [100, 20, 0, 0]


def test_first_come_first_served_cuts_the_last_that_fits() -> None:
    assert split_budget([100, 60, 5], 128, FIRST, chunked=True) == [100, 28, 0]


def test_equal_progress_deals_blocks_in_turn() -> None:
    assert split_budget([100, 100, 10], 128, EQUAL, chunked=True) == [64, 54, 10]
    assert split_budget([20, 20], 1000, EQUAL, chunked=True) == [20, 20]


@pytest.mark.parametrize("policy", list(ContextChunkingPolicy))
def test_something_always_goes_on(policy: ContextChunkingPolicy) -> None:
    assert sum(split_budget([50, 50], -3, policy, chunked=True)) == 1
