"""Tensors by their role where checkpoints keep them in other ways."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from repoagent_llm.builder.architecture import read_architecture
from repoagent_llm.builder.safetensors import Checkpoint, write_safetensors
from repoagent_llm.builder.weights import Linear, Weights, _halves, _stacked

from llm.tests.tiny_checkpoints import tiny_checkpoint

VARIANTS: dict[str, Any] = json.loads(Path(__file__).parents[1].joinpath("data", "architectures.json").read_text())[
    "variants"
]


@pytest.fixture
def rewritten(tmp_path: Path) -> Callable[..., Weights]:
    """``rewritten(name, change, **config)``: a tiny checkpoint whose tensors ``change`` has changed."""

    def make(name: str, change: Callable[[dict[str, Any]], dict[str, Any]], **config: Any) -> Weights:
        source = tiny_checkpoint(tmp_path, VARIANTS[name])
        written = Checkpoint(source)
        tensors = {name: np.array(written.read(name)) for name in written.names()}  # the file is mapped
        write_safetensors(source / "model.safetensors", change(tensors))
        (source / "config.json").write_text(json.dumps({**VARIANTS[name]["config"], **config}))
        return Weights(Checkpoint(source), read_architecture(source))

    return make


def _four_bits(code: int) -> float:
    """A sign, two bits of exponent, one of mantissa, as OCP's Microscaling Formats has E2M1."""
    exponent, mantissa = code >> 1 & 3, code & 1
    size = mantissa / 2 if exponent == 0 else 2.0 ** (exponent - 1) * (1 + mantissa / 2)
    return -size if code & 8 else size


def test_experts_in_four_bits_are_read(rewritten: Callable[..., Weights]) -> None:
    random = np.random.default_rng(0)
    blocks = random.integers(0, 256, (4, 128, 2, 16), dtype=np.uint8)
    scales = random.integers(120, 130, (4, 128, 2), dtype=np.uint8)

    def change(tensors: dict[str, Any]) -> dict[str, Any]:
        stem = "model.layers.0.mlp.experts."
        del tensors[f"{stem}gate_up_proj"], tensors[f"{stem}down_proj"]
        return {
            **tensors,
            f"{stem}gate_up_proj_bias": np.zeros((4, 128), np.float32),
            f"{stem}gate_up_proj_blocks": blocks,
            f"{stem}gate_up_proj_scales": scales,
            f"{stem}down_proj_blocks": blocks[:, :64],
            f"{stem}down_proj_scales": scales[:, :64],
        }

    rounding = {"quant_method": "mxfp4"}
    experts = rewritten("gpt_oss", change, intermediate_size=64, quantization_config=rounding).layer(0).experts
    assert experts is not None
    for expert, row, column in itertools.product((0, 3), (0, 1, 40, 63), (0, 1, 31, 32, 63)):
        packed = blocks[expert, 2 * row, column // 32, column % 32 // 2]
        code = int(packed) >> (4 if column % 2 else 0) & 15
        expected = _four_bits(code) * 2.0 ** (int(scales[expert, 2 * row, column // 32]) - 127)
        assert experts.gate.matrix[expert * 64 + row, column] == expected
    assert experts.down.matrix.shape == (4 * 64, 64)


def test_the_text_part_of_a_model_that_takes_images_is_read(rewritten: Callable[..., Weights]) -> None:
    text = VARIANTS["gemma3"]["config"]
    weights = rewritten(
        "gemma3",
        lambda tensors: {f"language_model.{name}": value for name, value in tensors.items()},
        model_type="gemma3",
        text_config=text,
    )
    assert weights.embedding().shape == (64, 64)
    norm = weights.layer(2).after_mlp
    assert norm is not None
    assert abs(norm.scale.mean() - 1) < 0.2  # it is stored as a difference to one


def test_layers_in_blocks_that_lie_in_one_matrix_keep_their_blocks() -> None:
    """As gate and up of Phi 3: rounded again, they would be others than the file's."""
    scales, matrix = np.arange(4, dtype=np.float32).reshape(4, 1), np.ones((4, 32), np.float32)
    four = Linear(matrix, blocks=(np.arange(64, dtype=np.uint8).reshape(4, 1, 16), scales))
    eight = Linear(matrix, blocks=(np.zeros((4, 1, 32), np.int8), scales))
    for both in (four, eight):
        stacked = _stacked(_halves(both))
        assert stacked.blocks is not None
        assert both.blocks is not None
        np.testing.assert_array_equal(stacked.blocks[0], both.blocks[0])
        np.testing.assert_array_equal(stacked.blocks[1], both.blocks[1])
    assert [half.blocks for half in _halves(Linear(matrix))] == [None, None]


def test_layers_in_blocks_of_different_kinds_are_stacked_as_numbers() -> None:
    scales, matrix = np.ones((4, 1, 1), np.float32), np.ones((4, 32), np.float32)
    four = Linear(matrix, blocks=(np.zeros((4, 1, 16), np.uint8), scales))
    eight = Linear(matrix, blocks=(np.zeros((4, 1, 32), np.int8), scales))
    for other, kept in ((four, True), (eight, False), (Linear(matrix), False)):
        stacked = _stacked([four, other])
        assert stacked.matrix.shape == (8, 32)
        assert (stacked.blocks is not None) == kept
