"""Sharing an iteration's tokens, and counting blocks."""

from types import SimpleNamespace
from typing import cast

import pytest
from repoagent_llm.engine.blocks import BlockBudget
from repoagent_llm.engine.scheduler import split_budget
from repoagent_llm.engine.task import Task
from repoagent_llm.runner.block_pool import blocks_for
from repoagent_llm.types.enums import ContextChunkingPolicy

FIRST = ContextChunkingPolicy.FIRST_COME_FIRST_SERVED
EQUAL = ContextChunkingPolicy.EQUAL_PROGRESS


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


def test_blocks_are_counted_by_request() -> None:
    budget = BlockBudget(4)
    one, two = (cast(Task, SimpleNamespace(id=number)) for number in (1, 2))
    assert budget.grow(one, 3)
    assert not budget.grow(two, 2)
    assert budget.grow(one, 2)
    assert (budget.free, budget.used) == (1, 3)
    budget.release(one)
    assert (budget.free, budget.used) == (4, 0)
    assert [blocks_for(tokens) for tokens in (0, 1, 32, 33)] == [0, 1, 1, 2]
