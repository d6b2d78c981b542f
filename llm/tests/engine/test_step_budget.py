"""What a step costs, learnt from steps."""

import numpy as np
import pytest
from repoagent_llm.engine.step_budget import StepCost


def _learnt(fixed: float, each: float, sizes: list[int]) -> StepCost:
    cost, random = StepCost(), np.random.default_rng(0)
    for tokens in random.choice(sizes, 300).tolist():
        cost.note(tokens, (fixed + each * tokens) * random.uniform(0.97, 1.03))
    return cost


def test_both_parts_are_learnt() -> None:
    cost = _learnt(0.005, 0.0005, [1, 5, 16, 40])
    assert cost.of(1) == pytest.approx(0.0055, rel=0.2)
    assert cost.of(80) == pytest.approx(0.045, rel=0.1)
    assert cost.tokens_within(0.045) == pytest.approx(80, abs=9)
    assert cost.tokens_within(0.001) == 1


def test_a_guess_must_be_the_likelier_the_more_texts_share_the_step() -> None:
    cost = _learnt(0.005, 0.0005, [1, 5, 16, 40])
    found = [cost.least_share(rows) for rows in (1, 4, 16)]
    assert found == pytest.approx([1 / 11, 4 / 14, 16 / 26], rel=0.25)


def test_what_guessing_itself_takes_counts_too() -> None:
    cost = _learnt(0.005, 0.0005, [1, 5, 16, 40])
    assert cost.least_share(4, 0.0035) == pytest.approx(cost.least_share(4) + 0.5, rel=0.2)
    assert StepCost().least_share(4, 1.0) == StepCost().least_share(4)


def test_steps_of_one_size_and_long_prompts_teach_nothing_of_the_parts() -> None:
    cost = StepCost()
    assert cost.of(5) == 0
    assert cost.tokens_within(1) == 256
    before = cost.least_share(4)
    for _ in range(100):
        cost.note(4, 0.01)
        cost.note(2000, 5.0)
    assert cost.least_share(4) == before
    assert cost.of(4) == pytest.approx(0.01)
