"""The form for paged attention: weights, rounded, in one file, and what describes the graph. It needs no OpenVINO."""

import hashlib
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent_llm.builder.architecture import Architecture
from repoagent_llm.builder.graph import finite
from repoagent_llm.builder.products import eight_bits, four_bits, quantize_outputs
from repoagent_llm.builder.safetensors import TensorFile
from repoagent_llm.builder.weights import ExpertWeights, LayerWeights, Linear, Norm, Weights
from repoagent_llm.runner.paged_folder import LAYOUT_VERSION, MATRICES
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

WEIGHTS_NAME: Final = "decoder.safetensors"
_PER_LAYER: Final = 48
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
    with TensorFile(path, _PER_LAYER * (shape.layers + 1)) as file:
        _Writer(file, matrices, block).model(shape, weights)
    return {
        "version": LAYOUT_VERSION,
        "matrices": matrices,
        "block": block,
        "sha256": _digest(path),
        "heads": shape.heads,
        "inner_size": shape.intermediate_size,
        "norm_epsilon": float(shape.norm_epsilon),
        "rotary_size": shape.rotary_size,
        "ropes": [dict(rope) for rope in shape.ropes],
        "layer_ropes": list(shape.layer_ropes),
        "windows": list(shape.windows),
        "root_mean_square": not shape.is_gpt2,
        "gate": shape.gate,
        "head_norms": shape.head_norms,
        "multipliers": asdict(shape.multipliers),
        "experts": _experts(shape),
        "lora": lora,
    }


def _experts(shape: Architecture) -> dict[str, Any] | None:
    if shape.experts is None:
        return None
    return {name: value for name, value in asdict(shape.experts).items() if name != "layers"}


def _check_blocks(shape: Architecture, block: int) -> None:
    sizes = [shape.hidden_size, shape.heads * shape.head_size, shape.intermediate_size]
    if shape.experts is not None:
        sizes = [*sizes[:2], shape.experts.inner_size, shape.experts.shared_size]
        sizes += [shape.intermediate_size] * (len(shape.experts.layers) < shape.layers)
    for inputs in sizes:
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
        self._matrix("embedding", Linear(weights.embedding()), plain)
        if (learned := weights.positions()) is not None:
            self._matrix("positions", Linear(learned), plain)
        for number in range(shape.layers):
            self._layer(f"layers.{number}", weights.layer(number))
        self._norm("last_hidden", weights.final_norm())
        if not (shape.tied and self._matrices == plain):
            self._matrix("head", weights.head(), "int8" if self._matrices == "int4" else self._matrices)
        self._file.close()

    def _layer(self, stem: str, layer: LayerWeights) -> None:
        norms = {
            "attention_input": layer.before_attention,
            "attention_added": layer.after_attention,
            "query_norm": layer.query_norm,
            "key_norm": layer.key_norm,
            "mlp_input": layer.before_mlp,
            "mlp_added": layer.after_mlp,
        }
        linear = {
            "qkv": layer.qkv,
            "attention_out": layer.attention_out,
            "gate": layer.gate,
            "up": layer.up,
            "mlp_out": layer.down,
        }
        for name, norm in norms.items():
            self._norm(f"{stem}.{name}", norm)
        for name, part in linear.items():
            self._linear(f"{stem}.{name}", part)
        if layer.sinks is not None:
            self._vector(f"{stem}.sinks", layer.sinks)
        if layer.experts is not None:
            self._experts(f"{stem}.experts", layer.experts)

    def _experts(self, stem: str, experts: ExpertWeights) -> None:
        self._linear(f"{stem}.router", experts.router, "fp32")
        for name, part in (("gate", experts.gate), ("up", experts.up), ("out", experts.down)):
            self._linear(f"{stem}.{name}", part)
        if experts.shared is not None:
            *parts, wanted = experts.shared
            for name, part in zip(("gate", "up", "mlp_out"), parts, strict=True):
                self._linear(f"{stem}.shared.{name}", part)
            self._linear(f"{stem}.shared.wanted", wanted, "fp32")

    def _norm(self, name: str, norm: Norm | None) -> None:
        if norm is None:
            return
        self._vector(f"{name}.scale", norm.scale)
        if norm.bias is not None:
            self._vector(f"{name}.bias", norm.bias)

    def _linear(self, name: str, layer: Linear | None, kept: str = "") -> None:
        if layer is None:
            return
        self._matrix(name, layer, kept or self._matrices)
        if layer.bias is not None:
            self._vector(f"{name}.bias", layer.bias)

    def _vector(self, name: str, values: Floats) -> None:
        self._file.write(name, finite(values, np.float32, name))

    def _matrix(self, name: str, layer: Linear, kept: str) -> None:
        matrix = finite(layer.matrix, np.float32, name)
        if kept == "fp32":
            self._file.write(name, matrix)
        elif kept == "bf16":
            self._file.write(name, _bfloat16(matrix))
        elif kept == "int8" and (blocks := eight_bits(layer, name)) is not None:
            self._file.write(name, blocks[0].reshape(matrix.shape))
            self._file.write(f"{name}.scale", finite(blocks[1], np.float16, name)[..., None])
        elif kept == "int8":
            levels, scales = quantize_outputs(matrix)
            self._file.write(name, np.ascontiguousarray(levels.T))
            self._file.write(f"{name}.scale", scales[:, None])
        else:
            packed, scales = four_bits(layer, self._block, name)
            self._file.write(name, packed ^ np.uint8(0x88))  # levels from -8 to 7 in the place of 0 to 15
            self._file.write(f"{name}.scale", finite(scales, np.float16, name)[..., None])


def _bfloat16(matrix: Floats) -> npt.NDArray[np.uint16]:
    """The upper halves, rounded to the nearest, of two equally near to the even one."""
    bits = np.ascontiguousarray(matrix).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
