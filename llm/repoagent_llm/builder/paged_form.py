"""The form for paged attention: weights, rounded, in one file, and what describes the graph. It needs no OpenVINO."""

import hashlib
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.builder.architecture import Architecture, rope_speeds
from repoagent_llm.builder.graph import finite
from repoagent_llm.builder.products import quantize, quantize_outputs
from repoagent_llm.builder.safetensors import TensorFile
from repoagent_llm.builder.weights import LayerWeights, Linear, Norm, Weights
from repoagent_llm.runner.paged_folder import LAYOUT_VERSION, MATRICES
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

__all__ = ["WEIGHTS_NAME", "write_paged"]

WEIGHTS_NAME: Final = "decoder.safetensors"
_PER_LAYER: Final = 32
_CHUNK: Final = 1 << 24
Floats = npt.NDArray[np.float32]


def write_paged(
    folder: Path, shape: Architecture, weights: Weights, *, matrices: str, block: int, lora: bool
) -> dict[str, Any]:
    """Write the weights; what genai_config.json says of the graph.

    Raises:
        UnsupportedFeatureError: weights cannot be in blocks of that size, or not in that form at all.
    """
    if matrices not in MATRICES:
        raise UnsupportedFeatureError(f"{matrices} in the paged form", f"it has {', '.join(MATRICES)}")
    if matrices == "int4":
        _check_blocks(shape, block)
    path = folder / WEIGHTS_NAME
    writer = _Writer(TensorFile(path, _PER_LAYER * (shape.layers + 1)), matrices, block)
    writer.model(shape, weights)
    return {
        "version": LAYOUT_VERSION,
        "matrices": matrices,
        "block": block,
        "sha256": _digest(path),
        "heads": shape.heads,
        "inner_size": shape.intermediate_size,
        "norm_epsilon": float(shape.norm_epsilon),
        "rotary": not shape.is_gpt2,
        "root_mean_square": not shape.is_gpt2,
        "gated": not shape.is_gpt2,
        "norms_heads": shape.norms_heads,
        "window": shape.sliding_window or 0,
        "lora": lora,
    }


def _check_blocks(shape: Architecture, block: int) -> None:
    for inputs in (shape.hidden_size, shape.heads * shape.head_size, shape.intermediate_size):
        if inputs % block:
            raise UnsupportedFeatureError(
                f"int4 in blocks of {block} in the paged form", f"a layer has {inputs} inputs, which is no multiple"
            )


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_CHUNK):
            digest.update(piece)
    return digest.hexdigest()


class _Writer:
    """Writes a model's tensors under the names by which the runner reads them."""

    def __init__(self, file: TensorFile, matrices: str, block: int) -> None:
        self._file = file
        self._matrices = matrices
        self._block = block

    def model(self, shape: Architecture, weights: Weights) -> None:
        """All of them."""
        plain = "bf16" if self._matrices == "bf16" else "fp32"
        self._matrix("embedding", weights.embedding(), plain)
        if (learned := weights.positions()) is not None:
            self._matrix("positions", learned, plain)
        else:
            self._vector("rotary", rope_speeds(shape).astype(np.float32))
        for number in range(shape.layers):
            self._layer(f"layers.{number}", weights.layer(number))
        self._norm("last_hidden", weights.final_norm())
        if not (shape.tied and self._matrices == plain):
            self._matrix("head", weights.head().matrix, "int8" if self._matrices == "int4" else self._matrices)
        self._file.close()

    def _layer(self, stem: str, layer: LayerWeights) -> None:
        self._norm(f"{stem}.attention_input", layer.before_attention)
        self._linear(f"{stem}.qkv", layer.qkv)
        if layer.query_norm is not None and layer.key_norm is not None:
            self._norm(f"{stem}.query_norm", layer.query_norm)
            self._norm(f"{stem}.key_norm", layer.key_norm)
        self._linear(f"{stem}.attention_out", layer.attention_out)
        self._norm(f"{stem}.mlp_input", layer.before_mlp)
        if layer.gate is not None:
            self._linear(f"{stem}.gate", layer.gate)
        self._linear(f"{stem}.up", layer.up)
        self._linear(f"{stem}.mlp_out", layer.down)

    def _norm(self, name: str, norm: Norm) -> None:
        self._vector(f"{name}.scale", norm.scale)
        if norm.bias is not None:
            self._vector(f"{name}.bias", norm.bias)

    def _linear(self, name: str, layer: Linear) -> None:
        self._matrix(name, layer.matrix, self._matrices)
        if layer.bias is not None:
            self._vector(f"{name}.bias", layer.bias)

    def _vector(self, name: str, values: Floats) -> None:
        self._file.write(name, finite(values, np.float32, name))

    def _matrix(self, name: str, matrix: Floats, kept: str) -> None:
        matrix = finite(matrix, np.float32, name)
        if kept == "fp32":
            self._file.write(name, matrix)
        elif kept == "bf16":
            self._file.write(name, _bfloat16(matrix))
        elif kept == "int8":
            levels, scales = quantize_outputs(matrix)
            self._file.write(name, np.ascontiguousarray(levels.T))
            self._file.write(f"{name}.scale", scales[:, None])
        else:
            packed, scales = quantize(matrix, self._block)
            self._file.write(name, packed ^ np.uint8(0x88))  # levels from -8 to 7 in the place of 0 to 15
            self._file.write(f"{name}.scale", finite(scales, np.float16, name)[..., None])


def _bfloat16(matrix: Floats) -> npt.NDArray[np.uint16]:
    """The upper halves, rounded to the nearest, of two equally near to the even one."""
    bits = np.ascontiguousarray(matrix).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
