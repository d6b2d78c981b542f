"""Drawing tokens: the fast way equals the plain one, and frequencies equal probabilities."""

import numpy as np
import pytest
from repoagent_llm.engine.token_sampling import Limits, distribution, draw, draw_plain, log_softmax


@pytest.mark.parametrize("size", [5, 200, 1000])
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
def test_top_k_and_min_p_pick_what_the_plain_way_picks(size: int, scale: float) -> None:
    source = np.random.default_rng(size)
    for _ in range(60):
        row = (source.standard_normal(size) * scale).astype(np.float32)
        limits = Limits(
            int(source.choice([1, 3, 50, 400])),
            float(source.choice([1.0, 0.999, 0.9, 0.3, 1e-6])),
            float(source.choice([0.0, 0.01, 0.5, 1.0])),
        )
        if limits.top_k >= size:
            limits.min_p = 0.02
        uniform = float(source.random())
        assert draw(row, limits, lambda: uniform) == draw_plain(row, limits, uniform), limits  # noqa: B023


@pytest.mark.parametrize("size", [5, 256, 257, 3000])
@pytest.mark.parametrize("scale", [0.1, 1.0, 8.0])
@pytest.mark.parametrize("top_p", [0.999, 0.9, 0.3, 1e-6])
def test_top_p_draws_only_what_the_plain_way_keeps(size: int, scale: float, top_p: float) -> None:
    source = np.random.default_rng(size)
    row = (source.standard_normal(size) * scale).astype(np.float32)
    row[source.choice(size, size // 4)] = -np.inf
    kept = distribution(row, Limits(top_p=top_p))
    drawn = [draw(row, Limits(top_p=top_p), source.random) for _ in range(40)]
    assert kept[drawn].min() > 0


@pytest.mark.slow
@pytest.mark.parametrize(("top_p", "count"), [(0.95, 20000), (0.5, 12000), (0.1, 4000)])
def test_top_p_follows_the_probabilities_of_a_flat_row(top_p: float, count: int) -> None:
    source = np.random.default_rng(7)
    row = source.standard_normal(600).astype(np.float32)
    expected = distribution(row, Limits(top_p=top_p))
    scratch = np.empty_like(row)
    counts = np.bincount([draw(row, Limits(top_p=top_p), source.random, scratch) for _ in range(count)], minlength=600)
    kept = expected > 0
    assert not counts[~kept].any()
    # The sum of squared errors over what is expected has the mean and half the variance of its degrees of freedom.
    error = ((counts[kept] - count * expected[kept]) ** 2 / (count * expected[kept])).sum()
    freedom = int(kept.sum()) - 1
    assert abs(error - freedom) < 5 * np.sqrt(2 * freedom)


@pytest.mark.slow
@pytest.mark.parametrize("limits", [Limits(), Limits(top_k=7), Limits(top_p=0.7), Limits(9, 0.5), Limits(min_p=0.3)])
def test_the_distribution_is_that_of_the_plain_way(limits: Limits) -> None:
    row = np.random.default_rng(4).integers(0, 9, 50).astype(np.float32) / np.float32(3)  # many are equal
    row[3] = -np.inf
    found = distribution(row, limits)
    steps = (np.arange(20000) + 0.5) / 20000
    counts = np.bincount([draw_plain(row, limits, uniform) for uniform in steps], minlength=50)
    np.testing.assert_array_equal(found > 0, counts > 0)
    np.testing.assert_allclose(found, counts / 20000, atol=1e-4)


def test_equal_logits_are_ordered_by_token() -> None:
    row = np.zeros(600, np.float32)
    assert draw(row, Limits(top_k=3), lambda: 0.0) == draw_plain(row, Limits(top_k=600, top_p=0.001), 0.0) == 0
    assert draw(row, Limits(top_k=3), lambda: 0.99) == 2
    source = np.random.default_rng(0)
    assert {draw(row, Limits(top_p=0.005), source.random) for _ in range(60)} == {0, 1, 2}


@pytest.mark.parametrize(
    ("limits", "kept"),
    [
        (Limits(), [0, 1, 2, 3, 4]),
        (Limits(top_k=2), [4, 2]),
        (Limits(top_p=0.6), [4, 2]),
        (Limits(min_p=0.3), [4, 2, 0]),
        (Limits(top_k=3, top_p=0.9), [4, 2, 0]),
        (Limits(top_p=1e-6), [4]),
    ],
)
def test_frequencies_equal_the_probabilities_of_what_is_kept(limits: Limits, kept: list[int]) -> None:
    probabilities = np.array([0.15, 0.05, 0.3, 0.1, 0.4])
    row = np.log(probabilities).astype(np.float32) + 3
    source = np.random.default_rng(1)
    counts = np.bincount([draw(row, limits, source.random) for _ in range(4000)], minlength=5)
    expected = np.zeros(5)
    expected[kept] = probabilities[kept] / probabilities[kept].sum()
    assert set(np.flatnonzero(counts)) == set(kept)
    np.testing.assert_allclose(counts / 4000, expected, atol=0.03)


def test_the_ends_of_the_unit_interval_pick_the_first_and_the_last_with_any_weight() -> None:
    def end() -> float:
        return float(np.nextafter(1.0, 0.0))

    row = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    assert draw(row, Limits(top_p=0.9), lambda: 0.0) == 0
    assert draw(row, Limits(top_p=0.9), end) == 2
    wide = np.zeros(1000, np.float32)
    assert draw(wide, Limits(), end) == 999
    wide[600:] = wide[:300] = -np.inf
    assert draw(wide, Limits(), end) == 599
    assert draw(wide, Limits(), lambda: 0.0) == 300


def test_log_softmax_is_exact() -> None:
    row = np.array([1000.0, 1001.0, 990.0], np.float32)
    np.testing.assert_allclose(np.exp(log_softmax(row)).sum(), 1.0, rtol=1e-6)
    assert log_softmax(np.array([0.0, -np.inf], np.float32)).tolist() == [0.0, -np.inf]
