"""The tensors of a checkpoint by their role, whatever the checkpoint calls them. Matrices are [outputs, inputs]."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from repoagent_llm.builder.architecture import Architecture
from repoagent_llm.builder.safetensors import Checkpoint

__all__ = ["LayerWeights", "Linear", "Norm", "Weights"]

Floats = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Linear:
    """A matrix [outputs, inputs] and perhaps a bias [outputs]."""

    matrix: Floats
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalisation; with a bias it is a layer norm, without one a root-mean-square norm."""

    scale: Floats
    bias: Floats | None = None


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One layer. ``qkv``: queries, keys and values one below the other. GPT-2 has no ``gate``."""

    before_attention: Norm
    qkv: Linear
    query_norm: Norm | None
    key_norm: Norm | None
    attention_out: Linear
    before_mlp: Norm
    gate: Linear | None
    up: Linear
    down: Linear


class Weights:
    """Reads a checkpoint role by role; layers are read when asked for, so only one need be in memory."""

    def __init__(self, checkpoint: Checkpoint, shape: Architecture) -> None:
        self._checkpoint = checkpoint
        self._shape = shape
        stem = "transformer." if shape.is_gpt2 else "model."
        self._stem = stem if any(name.startswith(stem) for name in checkpoint.names()) else ""

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
            return Linear(self.embedding())
        return Linear(self._checkpoint.read("lm_head.weight", (self._shape.vocab_size, self._shape.hidden_size)))

    def layer(self, number: int) -> LayerWeights:
        """The weights of one layer."""
        return self._gpt2_layer(f"h.{number}.") if self._shape.is_gpt2 else self._llama_layer(f"layers.{number}.")

    def _read(self, name: str, *shape: int) -> Floats:
        return self._checkpoint.read(self._stem + name, shape)

    def _maybe(self, name: str, size: int) -> Floats | None:
        return self._read(name, size) if self._stem + name in self._checkpoint else None

    def _norm(self, name: str, size: int) -> Norm:
        return Norm(self._read(f"{name}.weight", size), self._maybe(f"{name}.bias", size))

    def _linear(self, name: str, inputs: int, outputs: int) -> Linear:
        return Linear(self._read(f"{name}.weight", outputs, inputs), self._maybe(f"{name}.bias", outputs))

    def _conv1d(self, name: str, inputs: int, outputs: int) -> Linear:
        """GPT-2 stores its matrices as [inputs, outputs]."""
        matrix = np.ascontiguousarray(self._read(f"{name}.weight", inputs, outputs).T)
        return Linear(matrix, self._read(f"{name}.bias", outputs))

    def _gpt2_layer(self, stem: str) -> LayerWeights:
        hidden, inner = self._shape.hidden_size, self._shape.intermediate_size
        return LayerWeights(
            before_attention=self._norm(stem + "ln_1", hidden),
            qkv=self._conv1d(stem + "attn.c_attn", hidden, 3 * hidden),
            query_norm=None,
            key_norm=None,
            attention_out=self._conv1d(stem + "attn.c_proj", hidden, hidden),
            before_mlp=self._norm(stem + "ln_2", hidden),
            gate=None,
            up=self._conv1d(stem + "mlp.c_fc", hidden, inner),
            down=self._conv1d(stem + "mlp.c_proj", inner, hidden),
        )

    def _llama_layer(self, stem: str) -> LayerWeights:
        shape, hidden, inner = self._shape, self._shape.hidden_size, self._shape.intermediate_size
        queries, kv = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
        sizes = {"q": queries, "k": kv, "v": kv}
        parts = [self._linear(f"{stem}self_attn.{name}_proj", hidden, size) for name, size in sizes.items()]
        biases = [np.zeros(len(part.matrix), np.float32) if part.bias is None else part.bias for part in parts]
        return LayerWeights(
            before_attention=self._norm(stem + "input_layernorm", hidden),
            qkv=Linear(
                np.concatenate([part.matrix for part in parts]),
                np.concatenate(biases) if any(part.bias is not None for part in parts) else None,
            ),
            query_norm=self._norm(stem + "self_attn.q_norm", shape.head_size) if shape.norms_heads else None,
            key_norm=self._norm(stem + "self_attn.k_norm", shape.head_size) if shape.norms_heads else None,
            attention_out=self._linear(stem + "self_attn.o_proj", queries, hidden),
            before_mlp=self._norm(stem + "post_attention_layernorm", hidden),
            gate=self._linear(stem + "mlp.gate_proj", hidden, inner),
            up=self._linear(stem + "mlp.up_proj", hidden, inner),
            down=self._linear(stem + "mlp.down_proj", inner, hidden),
        )
