"""Adapters in the rows of a runner: what is bound for a window, and when it must be bound anew."""

import numpy as np
from repoagent_llm.runner.protocol import AdapterWeights
from repoagent_llm.runner.slab import AdapterRows


def _weights(rank: int, value: float, site: str = "x") -> AdapterWeights:
    return {site: (np.full((3, rank), value, np.float32), np.full((rank, 2), value, np.float32))}


def _rows() -> AdapterRows:
    return AdapterRows({"x": (3, 2), "y": (3, 2)}, 4, np.float32)


def test_without_an_adapter_a_window_has_rank_zero() -> None:
    rows = _rows()
    window = rows.window(1, 3)
    assert {name: array.shape for name, array in window.items()} == {
        "lora.x.a": (2, 3, 0),
        "lora.x.b": (2, 0, 2),
        "lora.y.a": (2, 3, 0),
        "lora.y.b": (2, 0, 2),
    }
    rows.put(0, _weights(2, 1.0))
    assert rows.window(1, 3)["lora.x.a"].shape == (2, 3, 0)
    assert rows.window(0, 3)["lora.x.a"].shape == (3, 3, 2)
    assert rows.window(0, 3)["lora.y.a"].shape == (3, 3, 0)


def test_a_larger_rank_replaces_the_arrays_and_smaller_ones_are_padded_with_zeros() -> None:
    rows = _rows()
    assert rows.put(0, _weights(2, 1.0))
    assert not rows.put(1, _weights(1, 2.0))
    assert rows.put(2, _weights(3, 3.0))
    window = rows.window(0, 4)
    for row, (rank, value) in enumerate([(2, 1.0), (1, 2.0), (3, 3.0), (0, 0.0)]):
        product = window["lora.x.a"][row] @ window["lora.x.b"][row]
        assert np.array_equal(product, np.full((3, 2), rank * value * value))


def test_a_row_forgets_its_adapter_and_arrays_shrink_when_small_ones_are_left() -> None:
    rows = _rows()
    rows.put(0, _weights(3, 3.0))
    assert not rows.put(0, None)
    assert not rows.any(0, 4)
    assert not rows.put(0, None)
    assert rows.put(1, _weights(1, 1.0, "y"))
    window = rows.window(0, 2)
    assert window["lora.x.a"].shape == (2, 3, 0)
    assert not window["lora.y.a"][0].any()


def test_moving_takes_the_adapter_along() -> None:
    rows = _rows()
    weights = _weights(2, 1.0)
    rows.put(0, _weights(1, 5.0))
    rows.put(3, weights)
    rows.put(0, None)
    rows.move(3, 0)
    assert rows.held(0) is weights
    assert rows.held(3) is None
    window = rows.window(0, 4)
    assert np.array_equal(window["lora.x.a"][0], weights["x"][0])
    assert not window["lora.x.a"][3].any()
