"""The graphs that draw: the tokens that ``draw`` draws from each row by the same random number."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from repoagent_llm.engine.token_sampling import Limits, distribution, draw
from repoagent_llm.engine.token_sampling_graph import Way, drawing_session

Rows = npt.NDArray[np.float32]


class _NextNumberError(Exception):
    pass


def _drawn(
    rows: Rows, limits: Sequence[Limits], uniforms: npt.NDArray[np.float64], temperatures: Sequence[float] | None = None
) -> list[int]:
    top_k = np.array([[item.top_k] for item in limits])
    feeds: dict[str, Any] = {
        "logits": rows,
        "temperature": np.array(temperatures or [1.0] * len(rows), np.float32)[:, None],
        "top_p": np.array([[item.top_p] for item in limits]),
        "uniform": uniforms[:, None],
    }
    if top_k.any():
        feeds |= {"largest": top_k.max(axis=0), "last_kept": top_k - 1}
    way = Way.TOP_K if top_k.any() else Way.TOP_P
    (tokens,) = drawing_session(rows.shape[1], way).run(None, feeds)
    found: list[int] = tokens[:, 0].tolist()
    return found


def _draw_once(row: Rows, limits: Limits, uniform: float) -> int | None:
    """The token of ``draw``; None where it needs a second number."""
    numbers = iter([uniform])

    def random() -> float:
        for number in numbers:
            return number
        raise _NextNumberError

    try:
        return draw(row.copy(), limits, random)
    except _NextNumberError:
        return None


@pytest.mark.parametrize("size", [5, 256, 700, 1024])
@pytest.mark.parametrize("scale", [0.1, 3.0])
def test_top_p_draws_what_draw_draws_or_leaves_it_to_draw(size: int, scale: float) -> None:
    source = np.random.default_rng(size)
    limits = [Limits(top_p=p) for p in (1.0, 0.99, 0.9, 0.5, 0.2, 0.01)]
    taken, left, needed = 0, 0, 0
    for _ in range(60):
        rows = (source.standard_normal((6, size)) * scale).astype(np.float32)
        rows[source.random(rows.shape) < 0.2] = -np.inf
        rows[:, 1] = 0.0
        uniforms = source.random(6)
        for row, item, uniform, token in zip(rows, limits, uniforms, _drawn(rows, limits, uniforms), strict=True):
            plain = _draw_once(row, item, float(uniform))
            if token < 0:
                left += 1
                needed += plain is not None
            else:
                taken += 1
                assert token == plain
    assert taken > left / 3
    assert needed <= 2, "what the graph left to draw had to be left"


@pytest.mark.parametrize("size", [5, 256, 700])
@pytest.mark.parametrize("decimals", [1, 7])
def test_top_p_with_several_numbers_takes_the_token_and_the_numbers_that_draw_takes(size: int, decimals: int) -> None:
    source = np.random.default_rng(size)
    taken = 0
    for _ in range(40):
        rows = (source.standard_normal((5, size)) * 0.5).round(decimals).astype(np.float32)
        top_p = np.array([[1.0], [0.9], [0.6], [0.4], [0.1]])
        uniforms = source.random((5, 4))
        feeds = {"logits": rows, "temperature": np.ones((5, 1), np.float32), "top_p": top_p, "uniform": uniforms}
        (drawn,) = drawing_session(size, Way.TOP_P_AGAIN).run(None, feeds)
        for row, p, numbers, (token, used) in zip(rows, top_p[:, 0], uniforms, drawn.tolist(), strict=True):
            if token >= 0:
                left = numbers.tolist()
                assert draw(row.copy(), Limits(top_p=p), lambda: left.pop(0)) == token  # noqa: B023 - called at once
                assert 4 - len(left) == used
                taken += 1
    assert taken > 80


@pytest.mark.parametrize(("size", "most"), [(5, 4), (256, 50), (700, 3), (1001, 64)])
@pytest.mark.parametrize("decimals", [1, 7])
def test_top_k_draws_what_draw_draws(size: int, most: int, decimals: int) -> None:
    """Few decimals: many equal logits."""
    source = np.random.default_rng(size)
    for _ in range(60):
        rows = (source.standard_normal((6, size)) * 3).round(decimals).astype(np.float32)
        limits = [Limits(int(source.integers(1, most + 1)), p) for p in (1.0, 0.9, 0.5, 0.2, 0.01, 1e-6)]
        uniforms = source.random(6)
        plain = [_draw_once(row, item, float(u)) for row, item, u in zip(rows, limits, uniforms, strict=True)]
        assert _drawn(rows, limits, uniforms) == plain


@pytest.mark.parametrize("limits", [Limits(top_p=0.8), Limits(20, 0.8), Limits(20), Limits(top_p=1.0)])
def test_tokens_come_as_often_as_they_are_likely(limits: Limits) -> None:
    source = np.random.default_rng(3)
    row = source.standard_normal(300).astype(np.float32)
    number = 20000
    found = np.array(_drawn(np.tile(row, (number, 1)), [limits] * number, source.random(number), [0.7] * number))
    expected = distribution(row / np.float32(0.7), limits)
    kept = found[found >= 0]
    assert set(kept.tolist()) <= set(np.flatnonzero(expected).tolist())
    often = np.bincount(kept, minlength=300) / len(kept)
    assert abs(often - expected).max() < 5 * np.sqrt(expected.max() / len(kept))


def test_equal_logits_share_what_top_p_leaves() -> None:
    rows = np.zeros((8, 512), np.float32)
    uniforms = np.linspace(0.0, 0.999, 8)
    for uniform, token in zip(uniforms, _drawn(rows, [Limits(top_p=0.5)] * 8, uniforms), strict=True):
        assert token in (-1, _draw_once(rows[0], Limits(top_p=0.5), float(uniform)))


@pytest.mark.parametrize("top_k", [0, 8])
def test_rows_that_nothing_can_be_drawn_from_harm_no_other(top_k: int) -> None:
    rows = np.zeros((5, 300), np.float32)
    rows[0], rows[1], rows[2, 2:], rows[3, 299] = -np.inf, np.nan, -np.inf, np.inf
    uniforms = np.full(5, 0.411)
    limits = Limits(top_k, 1.0)
    found = _drawn(rows, [limits] * 5, uniforms)
    assert [found[0], found[1], found[3]] == [-1, -1, -1]
    assert [found[2], found[4]] == [_draw_once(rows[2], limits, 0.411), _draw_once(rows[4], limits, 0.411)]
