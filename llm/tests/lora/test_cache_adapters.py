"""Adapters in TensorRT-LLM's form: which numbers mean which layer, and what is refused."""

from typing import Any

import numpy as np
import pytest
from repoagent_llm.lora.cache import LoraAdapter, read_adapter
from repoagent_llm.runner.protocol import LoraShape

# Hidden 4, two heads of 2, one key head, an MLP of 6.
_SIZES = {"qkv": (4, 8), "attention_out": (4, 4), "gate": (4, 6), "up": (4, 6), "mlp_out": (6, 4)}
GATED = LoraShape(2, 2, {f"layers.{n}.{name}": size for n in range(2) for name, size in _SIZES.items()})
PLAIN = LoraShape(2, 2, {name: size for name, size in GATED.sites.items() if not name.endswith("gate")})


def _read(rows: list[list[float]], config: list[list[int]], shape: LoraShape = GATED, **options: Any) -> LoraAdapter:
    settings = {"max_rank": 8, "dtype": np.float32, **options}
    return read_adapter(3, np.array(rows, np.float32), np.array(config, np.int32), shape, **settings)


def _row(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], size: int) -> list[float]:
    values = [*a.ravel().tolist(), *b.ravel().tolist()]
    return values + [99.0] * (size - len(values))


def test_in_and_out_matrices_are_read_row_by_row_and_padding_is_left_alone() -> None:
    a, b = np.arange(8).reshape(2, 4), np.arange(10, 18).reshape(4, 2)
    adapter = _read([_row(a, b, 30)], [[4, 1, 2]])
    (found,) = adapter.weights.items()
    assert found[0] == "layers.1.attention_out"
    assert np.array_equal(found[1][0], a.T)
    assert np.array_equal(found[1][1], b.T)
    assert (adapter.task_id, adapter.nbytes) == (3, 4 * 16)


def test_query_key_and_value_share_a_layer_each_with_its_own_columns() -> None:
    parts = {1: 4, 2: 2, 3: 2}
    matrices = {
        module: (np.full((module, 4), module), np.full((size, module), module)) for module, size in parts.items()
    }
    rows = [_row(*matrices[module], 24) for module in parts]
    adapter = _read(rows, [[module, 0, module] for module in parts])
    a, b = adapter.weights["layers.0.qkv"]
    assert a.shape == (4, 6)
    assert b.shape == (6, 8)
    expected = np.concatenate([matrices[module][1] @ matrices[module][0] for module in parts])
    assert np.array_equal((a @ b).T, expected)
    assert np.array_equal(b[0], [1, 1, 1, 1, 0, 0, 0, 0])


@pytest.mark.parametrize(
    ("module", "gated", "plain"),
    [(0, "qkv", "qkv"), (5, "gate", "up"), (6, "mlp_out", "mlp_out"), (7, "up", None)],
)
def test_numbers_of_modules(module: int, gated: str, plain: str | None) -> None:
    row = [1.0] * 40
    assert list(_read([row], [[module, 0, 1]]).weights) == [f"layers.0.{gated}"]
    if plain is None:
        with pytest.raises(RuntimeError, match="lora module mlp_gate not enabled for this model"):
            _read([row], [[module, 0, 1]], PLAIN)
    else:
        assert list(_read([row], [[module, 0, 1]], PLAIN).weights) == [f"layers.0.{plain}"]


def test_queries_keys_and_values_may_be_layers_of_their_own() -> None:
    shape = LoraShape(1, 2, {"layers.0.q": (4, 4), "layers.0.k": (4, 2), "layers.0.v": (4, 2)})
    adapter = _read([[1.0] * 8] * 3, [[module, 0, 1] for module in (1, 2, 3)], shape)
    assert {name: b.shape for name, (_, b) in adapter.weights.items()} == {
        "layers.0.q": (1, 4),
        "layers.0.k": (1, 2),
        "layers.0.v": (1, 2),
    }
    with pytest.raises(RuntimeError, match="lora module attn_qkv not enabled for this model"):
        _read([[1.0] * 40], [[0, 0, 1]], shape)


def test_other_weights_have_another_digest_and_the_element_type_is_the_models() -> None:
    first, second, again = (_read([[value] * 8], [[4, 0, 1]], dtype=np.float16) for value in (1.0, 2.0, 1.0))
    assert first.digest == again.digest != second.digest
    assert first.weights["layers.0.attention_out"][0].dtype == np.float16


@pytest.mark.parametrize(
    ("config", "text"),
    [
        ([4, 2, 1], r"Expected layerId to be in the range \[0, numModelLayers\)"),
        ([4, -1, 1], "Expected layerId"),
        ([4, 0, 0], "Expected adapterSize to be > 0"),
        ([4, 0, 9], r"Invalid low_rank \(9\)\. low_rank must be smaller than mMaxLowRank \(8\)"),
        ([4, 0, 2], r"lora_weights has to few values for layers\.0\.attention_out: 8, rank 2 needs 16"),
        ([9, 0, 1], "lora module cross_attn_q not enabled for this model"),
        ([77, 0, 1], "lora module INVALID"),
        ([4, 0], r"Expected dim2 of lora_keys to have a size in \[3, 4\]"),
        ([4, 0, 1, 1], "DoRA in LoraConfig is not supported"),
    ],
)
def test_what_does_not_fit_is_named(config: list[int], text: str) -> None:
    with pytest.raises(RuntimeError, match=text):
        _read([[1.0] * 8], [config])


def test_weights_must_be_floating_point() -> None:
    with pytest.raises(RuntimeError, match="floating-point type, not int32"):
        read_adapter(1, np.ones((1, 8), np.int32), np.array([[4, 0, 1]], np.int32), GATED, max_rank=8, dtype=np.float32)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_weights_must_be_finite(value: float) -> None:
    with pytest.raises(RuntimeError, match="not finite"):
        _read([[1.0] * 7 + [value]], [[4, 0, 1]])


def test_a_fourth_column_of_zero_is_plain_lora() -> None:
    assert list(_read([[1.0] * 8], [[4, 0, 1, 0]]).weights) == ["layers.0.attention_out"]
