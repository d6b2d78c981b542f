"""Rows that are drawn from at once: the tokens that each gives alone."""

import numpy as np
import pytest

from repoagent.executor.engine.drawing import Limits, draw
from repoagent.executor.engine.drawing_together import draw_largest_together, draw_together


@pytest.mark.parametrize("size", [5, 256, 700])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_rows_together_draw_what_each_draws_alone(size: int, scale: float) -> None:
    source = np.random.default_rng(size)
    for _ in range(20):
        rows = (source.standard_normal((6, size)) * scale).astype(np.float32)
        rows[source.random(rows.shape) < 0.2] = -np.inf
        rows[:, 1] = 0.0
        top_p = [0.99, 0.9, 0.5, 0.2, 0.01, 1e-6]
        seeds = source.integers(0, 1000, 6)
        alone = [
            draw(row, Limits(top_p=p), np.random.default_rng(seed).random)
            for row, p, seed in zip(rows, top_p, seeds, strict=True)
        ]
        assert draw_together(rows.copy(), top_p, [np.random.default_rng(seed).random for seed in seeds]) == alone


def test_rows_that_nothing_can_be_drawn_from() -> None:
    rows = np.zeros((3, 300), np.float32)
    rows[0], rows[1, 7], rows[2, 3:] = -np.inf, np.nan, -np.inf
    randoms = [np.random.default_rng(0).random] * 3
    assert draw_together(rows[:2].copy(), [0.9, 0.9], randoms[:2]) == [None, None]
    first, second, third = draw_together(rows, [0.9] * 3, randoms)
    assert (first, second) == (None, None)
    assert third in (0, 1, 2)


@pytest.mark.parametrize(("size", "top_k"), [(5, 1), (5, 4), (256, 50), (700, 3), (1001, 256)])
@pytest.mark.parametrize("scale", [0.1, 3.0])
@pytest.mark.parametrize("decimals", [1, 7])
def test_the_largest_of_rows_together_are_those_of_each_alone(
    size: int, top_k: int, scale: float, decimals: int
) -> None:
    """Few decimals: many equal logits."""
    source = np.random.default_rng(size)
    for _ in range(20):
        rows = (source.standard_normal((6, size)) * scale).round(decimals).astype(np.float32)
        top_p = [1.0, 0.9, 0.5, 0.2, 0.01, 1e-6]
        seeds = source.integers(0, 1000, 6)
        alone = [
            draw(row, Limits(top_k, p), np.random.default_rng(seed).random)
            for row, p, seed in zip(rows, top_p, seeds, strict=True)
        ]
        randoms = [np.random.default_rng(seed).random for seed in seeds]
        assert draw_largest_together(rows, top_k, top_p, randoms) == alone


def test_rows_with_too_few_or_infinite_logits_are_left_out_and_draw_no_number() -> None:
    rows = np.zeros((5, 300), np.float32)
    rows[0], rows[1], rows[2, 2:], rows[3, 299] = -np.inf, np.nan, -np.inf, np.inf
    randoms = [np.random.default_rng(number) for number in range(5)]
    found = draw_largest_together(rows, 8, [0.9] * 5, [source.random for source in randoms])
    assert found[:4] == [None] * 4
    assert found[4] == draw(rows[4], Limits(8, 0.9), np.random.default_rng(4).random)
    assert [source.random() for source in randoms[:4]] == [np.random.default_rng(n).random() for n in range(4)]
