"""The tensors of a checkpoint by their role, whatever the checkpoint calls them. Matrices are [outputs, inputs]."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from repoagent_llm.builder.architecture import Architecture, Experts
from repoagent_llm.builder.products import Blocks, WideBlocks

Floats = npt.NDArray[np.float32]


class CheckpointTensors(Protocol):
    """The tensors of a checkpoint, under the names of Hugging Face."""

    def __contains__(self, name: str) -> bool: ...

    def read(self, name: str, shape: tuple[int, ...] | None = None) -> Floats:
        """A tensor as float32.

        Raises ``InvalidArgumentError`` when it is missing, of an unknown type or, where that is said, of another shape.
        """

    def blocks(self, name: str) -> Blocks | WideBlocks | None:
        """A matrix in four or eight bits as the checkpoint has it, if it has it so."""


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix [outputs, inputs] and perhaps a bias [outputs]; ``blocks`` where the checkpoint has it so."""

    matrix: Floats
    bias: Floats | None = None
    blocks: Blocks | WideBlocks | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation; with a bias it is a layer norm, without one a root-mean-square norm."""

    scale: Floats
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class ExpertWeights:
    """What a router [experts, hidden] chooses from: all experts' matrices and biases one below the other."""

    router: Linear
    gate: Linear
    up: Linear
    down: Linear
    shared: "tuple[Linear, Linear, Linear, Linear] | None" = None
    """Of an expert for all tokens: gate, up, down, and how much of it is wanted."""


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. ``qkv``: queries, keys and values one below the other. GPT-2 has no ``gate``.

    Norms stand before a part, or behind it before it is added, or both. ``experts`` stand in for gate, up and down.
    """

    qkv: Linear
    attention_out: Linear
    before_attention: Norm | None
    before_mlp: Norm | None
    up: Linear | None = None
    down: Linear | None = None
    gate: Linear | None = None
    after_attention: Norm | None = None
    after_mlp: Norm | None = None
    query_norm: Norm | None = None
    key_norm: Norm | None = None
    sinks: Floats | None = None
    experts: ExpertWeights | None = None


_GEMMA: Final = "gemma3_text"
_NORMS: Final = {
    "olmo2": ("", "post_attention_layernorm", "", "post_feedforward_layernorm"),
    _GEMMA: (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "post_feedforward_layernorm",
    ),
}
"""What norms before and behind attention, before and behind the MLP are called."""
_STEMS: Final = ("model.", "language_model.model.", "model.language_model.", "transformer.")
_FOUR_BITS: Final = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
"""The values of half a byte of MXFP4; the upper ones are negative."""


class Weights:
    """Reads a checkpoint role by role; layers are read when asked for, so only one need be in memory."""

    def __init__(self, checkpoint: CheckpointTensors, shape: Architecture) -> None:
        self._checkpoint = checkpoint
        self._shape = shape
        table = "wte.weight" if shape.is_gpt2 else "embed_tokens.weight"
        self._stem = next((stem for stem in _STEMS if stem + table in checkpoint), "")

    def embedding(self) -> Floats:
        """Token embeddings [vocabulary, hidden]."""
        shape = self._shape
        name = "wte.weight" if shape.is_gpt2 else "embed_tokens.weight"
        return self._read(name, shape.vocab_size, shape.hidden_size)

    def positions(self) -> Floats | None:
        """Learned positions [context length, hidden], or None."""
        shape = self._shape
        return self._read("wpe.weight", shape.context_length, shape.hidden_size) if shape.is_gpt2 else None

    def final_norm(self) -> Norm:
        """The norm before the LM head."""
        return self._norm("ln_f" if self._shape.is_gpt2 else "norm", self._shape.hidden_size)

    def head(self) -> Linear:
        """The LM head; the embedding itself when they are tied."""
        if self._shape.tied:
            return Linear(self.embedding(), blocks=self._checkpoint.blocks(f"{self._stem}embed_tokens.weight"))
        names = [f"{stem}lm_head.weight" for stem in ("", "language_model.")]
        name = next((name for name in names if name in self._checkpoint), names[0])
        matrix = self._checkpoint.read(name, (self._shape.vocab_size, self._shape.hidden_size))
        return Linear(matrix, blocks=self._checkpoint.blocks(name))

    def layer(self, number: int) -> LayerWeights:
        """The weights of one layer."""
        if self._shape.is_gpt2:
            return self._gpt2_layer(f"h.{number}.")
        return self._llama_layer(f"layers.{number}.", number)

    def _read(self, name: str, *shape: int) -> Floats:
        return self._checkpoint.read(self._stem + name, shape)

    def _maybe(self, name: str, size: int) -> Floats | None:
        return self._read(name, size) if self._stem + name in self._checkpoint else None

    def _norm(self, name: str, size: int) -> Norm:
        scale = self._read(f"{name}.weight", size)
        return Norm(scale + 1 if self._shape.kind == _GEMMA else scale, self._maybe(f"{name}.bias", size))

    def _linear(self, name: str, inputs: int, outputs: int) -> Linear:
        matrix = self._read(f"{name}.weight", outputs, inputs)
        blocks = self._checkpoint.blocks(f"{self._stem}{name}.weight")
        return Linear(matrix, self._maybe(f"{name}.bias", outputs), blocks)

    def _conv1d(self, name: str, inputs: int, outputs: int) -> Linear:
        """GPT-2 stores its matrices as [inputs, outputs]."""
        matrix = np.ascontiguousarray(self._read(f"{name}.weight", inputs, outputs).T)
        return Linear(matrix, self._read(f"{name}.bias", outputs))

    def _gpt2_layer(self, stem: str) -> LayerWeights:
        hidden, inner = self._shape.hidden_size, self._shape.intermediate_size
        return LayerWeights(
            before_attention=self._norm(stem + "ln_1", hidden),
            qkv=self._conv1d(stem + "attn.c_attn", hidden, 3 * hidden),
            attention_out=self._conv1d(stem + "attn.c_proj", hidden, hidden),
            before_mlp=self._norm(stem + "ln_2", hidden),
            up=self._conv1d(stem + "mlp.c_fc", hidden, inner),
            down=self._conv1d(stem + "mlp.c_proj", inner, hidden),
        )

    def _llama_layer(self, stem: str, number: int) -> LayerWeights:
        shape, hidden, attention = self._shape, self._shape.hidden_size, f"{stem}self_attn."
        queries, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        usual = ("input_layernorm", "", "post_attention_layernorm", "")
        norms = [self._norm(stem + name, hidden) if name else None for name in _NORMS.get(shape.kind, usual)]
        normed = {"none": (0, 0), "head": (shape.head_size, shape.head_size), "all": (queries, kv)}[shape.head_norms]
        sparse = shape.experts is not None and number in shape.experts.layers
        gate, up, down = (None, None, None) if sparse else self._mlp(f"{stem}mlp.", shape.intermediate_size)
        return LayerWeights(
            before_attention=norms[0],
            after_attention=norms[1],
            before_mlp=norms[2],
            after_mlp=norms[3],
            qkv=self._qkv(attention, queries, kv),
            query_norm=self._norm(f"{attention}q_norm", normed[0]) if normed[0] else None,
            key_norm=self._norm(f"{attention}k_norm", normed[1]) if normed[1] else None,
            sinks=self._read(f"{attention}sinks", shape.heads) if shape.kind == "gpt_oss" else None,
            attention_out=self._linear(f"{attention}o_proj", queries, hidden),
            gate=gate,
            up=up,
            down=down,
            experts=self._experts(stem, shape.experts) if sparse and shape.experts else None,
        )

    def _qkv(self, stem: str, queries: int, kv: int) -> Linear:
        hidden = self._shape.hidden_size
        if f"{self._stem}{stem}qkv_proj.weight" in self._checkpoint:
            return self._linear(f"{stem}qkv_proj", hidden, queries + 2 * kv)
        sizes = {"q": queries, "k": kv, "v": kv}
        return _stacked([self._linear(f"{stem}{name}_proj", hidden, size) for name, size in sizes.items()])

    def _mlp(self, stem: str, inner: int) -> tuple[Linear, Linear, Linear]:
        """Gate, up and down."""
        hidden = self._shape.hidden_size
        if f"{self._stem}{stem}gate_up_proj.weight" in self._checkpoint:
            gate, up = _halves(self._linear(f"{stem}gate_up_proj", hidden, 2 * inner))
        else:
            gate, up = (self._linear(f"{stem}{name}_proj", hidden, inner) for name in ("gate", "up"))
        return gate, up, self._linear(f"{stem}down_proj", inner, hidden)

    def _experts(self, stem: str, experts: Experts) -> ExpertWeights:
        hidden, inner = self._shape.hidden_size, experts.inner_size
        if self._shape.kind == "gpt_oss":
            return self._gpt_oss_experts(f"{stem}mlp.", experts)
        box, names = "mlp.", ("gate_proj", "up_proj", "down_proj")
        if self._shape.kind == "mixtral":
            box, names = "block_sparse_moe.", ("w1", "w3", "w2")
        gate, up, down = (
            _stacked([self._linear(f"{stem}{box}experts.{number}.{name}", *sizes) for number in range(experts.count)])
            for name, sizes in zip(names, ((hidden, inner), (hidden, inner), (inner, hidden)), strict=True)
        )
        shared = None
        if experts.shared_size:
            wanted = self._linear(f"{stem}{box}shared_expert_gate", hidden, 1)
            shared = (*self._mlp(f"{stem}{box}shared_expert.", experts.shared_size), wanted)
        return ExpertWeights(self._linear(f"{stem}{box}gate", hidden, experts.count), gate, up, down, shared)

    def _gpt_oss_experts(self, stem: str, experts: Experts) -> ExpertWeights:
        """Gate and up take turns, row by row."""
        count, hidden, inner = experts.count, self._shape.hidden_size, experts.inner_size
        both = self._turned(f"{stem}experts.gate_up_proj", count, 2 * inner, hidden)
        bias = self._read(f"{stem}experts.gate_up_proj_bias", count, 2 * inner)
        gate, up = (Linear(both[:, first::2].reshape(-1, hidden), bias[:, first::2].reshape(-1)) for first in (0, 1))
        down = self._turned(f"{stem}experts.down_proj", count, hidden, inner).reshape(-1, inner)
        down_bias = self._read(f"{stem}experts.down_proj_bias", count, hidden).reshape(-1)
        return ExpertWeights(self._linear(f"{stem}router", hidden, count), gate, up, Linear(down, down_bias))

    def _turned(self, name: str, count: int, outputs: int, inputs: int) -> Floats:
        """[experts, outputs, inputs], of a tensor that has these the other way round, or of blocks of MXFP4."""
        if f"{self._stem}{name}_blocks" not in self._checkpoint:
            return np.ascontiguousarray(self._read(name, count, inputs, outputs).transpose(0, 2, 1))
        blocks = self._read(f"{name}_blocks", count, outputs, inputs // 32, 16).astype(np.uint8)
        scales = self._read(f"{name}_scales", count, outputs, inputs // 32).astype(np.int32) - 127
        values = np.array(_FOUR_BITS + tuple(-value for value in _FOUR_BITS), np.float32)
        halves = np.stack([values[blocks & 15], values[blocks >> 4]], axis=-1).reshape(*scales.shape, 32)
        return np.asarray(np.ldexp(halves, scales[..., None]), np.float32).reshape(count, outputs, inputs)


def _halves(both: Linear) -> tuple[Linear, Linear]:
    """Two layers that lie one below the other, without biases."""
    middle, found = len(both.matrix) // 2, []
    for part in (slice(middle), slice(middle, None)):
        blocks: Any = None if both.blocks is None else tuple(array[part] for array in both.blocks)
        found.append(Linear(both.matrix[part], blocks=blocks))
    return found[0], found[1]


def _stacked(parts: Sequence[Linear]) -> Linear:
    """Layers one below the other; biases of zero where only some have one."""
    biases = [np.zeros(len(part.matrix), np.float32) if part.bias is None else part.bias for part in parts]
    blocks = [part.blocks for part in parts if part.blocks is not None]
    if len(blocks) < len(parts) or len({levels.dtype for levels, _ in blocks}) > 1:
        blocks = []
    return Linear(
        np.concatenate([part.matrix for part in parts]),
        np.concatenate(biases) if any(part.bias is not None for part in parts) else None,
        (np.concatenate([one for one, _ in blocks]), np.concatenate([one for _, one in blocks])) if blocks else None,
    )
