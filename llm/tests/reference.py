"""A decoder in plain NumPy, in double precision: no cache, no batches, no graph. What the executor is compared with.

It reads the checkpoint itself and recomputes every token from the first, as the models' papers write them down.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def read_tensors(path: Path) -> dict[str, Array]:
    """All tensors of a safetensors file of float32."""
    raw = path.read_bytes()
    (size,) = struct.unpack("<Q", raw[:8])
    tensors = {}
    for name, entry in json.loads(raw[8 : 8 + size]).items():
        start, stop = (8 + size + offset for offset in entry["data_offsets"])
        assert entry["dtype"] == "F32"
        tensors[name] = np.frombuffer(raw[start:stop], "<f4").reshape(entry["shape"]).astype(np.float64)
    return tensors


@dataclass(frozen=True)
class Scaling:
    """What a request may do to logits: the temperature first, then each token of the whole history is penalised."""

    temperature: float = 1.0
    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0

    def apply(self, logits: Array, tokens: Sequence[int]) -> Array:
        """The logits of what follows ``tokens``, changed."""
        scaled = logits / self.temperature
        for token in set(tokens):
            value = float(scaled[token])
            value = value * self.repetition if value < 0 else value / self.repetition
            scaled[token] = value - self.presence - self.frequency * list(tokens).count(token)
        return scaled


PLAIN = Scaling()


class Reference:
    """A checkpoint folder's model. ``changes``: tensors that stand in for the folder's."""

    def __init__(self, folder: Path, changes: Mapping[str, Array] | None = None) -> None:
        self.config: dict[str, Any] = json.loads((folder / "config.json").read_text())
        self.tensors = {**read_tensors(folder / "model.safetensors"), **(changes or {})}
        self._gpt2 = self.config["model_type"] == "gpt2"

    def embed(self, tokens: Sequence[int]) -> Array:
        """The rows of the embedding table [tokens, hidden]."""
        name = "transformer.wte.weight" if self._gpt2 else "model.embed_tokens.weight"
        return self.tensors[name][list(tokens)]

    def logits(self, tokens: Sequence[int], embedded: Array | None = None) -> Array:
        """Logits after each token [tokens, vocabulary]; ``embedded`` stands in for the embedding of ``tokens``."""
        x = self.embed(tokens) if embedded is None else embedded
        return self._gpt2_logits(x) if self._gpt2 else self._llama_logits(x)

    def hidden(self, tokens: Sequence[int]) -> Array:
        """What the head of a model like Llama reads after each token [tokens, hidden]."""
        return self._llama_hidden(self.embed(tokens))

    def log_probs(self, tokens: Sequence[int], scaling: Scaling = PLAIN) -> Array:
        """Log-probabilities of what follows ``tokens``."""
        return log_softmax(scaling.apply(self.logits(tokens)[-1], tokens))

    def _llama_logits(self, x: Array) -> Array:
        head = "model.embed_tokens.weight" if self.config["tie_word_embeddings"] else "lm_head.weight"
        return np.asarray(self._llama_hidden(x) @ self.tensors[head].T)

    def _llama_hidden(self, x: Array) -> Array:
        tensors, config = self.tensors, self.config
        for number in range(config["num_hidden_layers"]):
            stem = f"model.layers.{number}."
            x = x + self._llama_attention(rms_norm(x, tensors[stem + "input_layernorm.weight"], config), stem)
            y = rms_norm(x, tensors[stem + "post_attention_layernorm.weight"], config)
            gate, up = self._project(y, stem + "mlp.gate_proj"), self._project(y, stem + "mlp.up_proj")
            x = x + self._project(gate / (1 + np.exp(-gate)) * up, stem + "mlp.down_proj")
        return np.asarray(rms_norm(x, tensors["model.norm.weight"], config))

    def _project(self, x: Array, name: str) -> Array:
        return np.asarray(x @ self.tensors[f"{name}.weight"].T + self.tensors.get(f"{name}.bias", 0.0))

    def _llama_attention(self, x: Array, stem: str) -> Array:
        config, parts = self.config, []
        size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        for part in "qkv":
            heads = self._project(x, f"{stem}self_attn.{part}_proj").reshape(len(x), -1, size)
            if part != "v":
                if (scale := self.tensors.get(f"{stem}self_attn.{part}_norm.weight")) is not None:
                    heads = rms_norm(heads, scale, config)
                heads = rotate(heads, config)
            parts.append(heads)
        query, key, value = parts
        window = config.get("sliding_window") if config["model_type"] == "mistral" else None
        mixed = attend(query, key, value, window)
        return self._project(mixed, f"{stem}self_attn.o_proj")

    def _gpt2_logits(self, x: Array) -> Array:
        tensors, heads = self.tensors, self.config["n_head"]
        x = x + tensors["transformer.wpe.weight"][: len(x)]
        for number in range(self.config["n_layer"]):
            stem = f"transformer.h.{number}."
            qkv = self._conv(self._layer_norm(x, stem + "ln_1"), stem + "attn.c_attn")
            query, key, value = (part.reshape(len(x), heads, -1) for part in np.split(qkv, 3, axis=1))
            x = x + self._conv(attend(query, key, value), stem + "attn.c_proj")
            inner = self._conv(self._layer_norm(x, stem + "ln_2"), stem + "mlp.c_fc")
            gelu = 0.5 * inner * (1 + np.tanh(np.sqrt(2 / np.pi) * (inner + 0.044715 * inner**3)))
            x = x + self._conv(gelu, stem + "mlp.c_proj")
        return np.asarray(self._layer_norm(x, "transformer.ln_f") @ tensors["transformer.wte.weight"].T)

    def _conv(self, x: Array, name: str) -> Array:
        return np.asarray(x @ self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"])

    def _layer_norm(self, x: Array, name: str) -> Array:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self.config["layer_norm_epsilon"])
        return np.asarray(scaled * self.tensors[f"{name}.weight"] + self.tensors[f"{name}.bias"])

    def greedy(self, prompt: Sequence[int], count: int, end_id: int = -1, scaling: Scaling = PLAIN) -> list[int]:
        """Up to ``count`` new tokens; the end token is not among them."""
        tokens = list(prompt)
        for _ in range(count):
            token = int(self.log_probs(tokens, scaling).argmax())
            if token == end_id:
                break
            tokens.append(token)
        return tokens[len(prompt) :]

    def beams(
        self, prompt: Sequence[int], count: int, widths: Sequence[int], scaling: Scaling = PLAIN
    ) -> list[tuple[list[int], float]]:
        """The best texts of ``count`` tokens with their summed log-probabilities; ``widths``: of each step, the
        last one from then on."""
        beams: list[tuple[list[int], float]] = [([], 0.0)]
        for step in range(count):
            grown = []
            for text, total in beams:
                log_probs = self.log_probs([*prompt, *text], scaling)
                grown += [([*text, token], total + float(value)) for token, value in enumerate(log_probs)]
            grown.sort(key=lambda item: -item[1])
            beams = grown[: widths[min(step, len(widths) - 1)]]
        return beams


def rms_norm(x: Array, scale: Array, config: Mapping[str, Any]) -> Array:
    """Root-mean-square normalisation over the last axis."""
    return np.asarray(x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + config["rms_norm_eps"]) * scale)


def rotate(heads: Array, config: Mapping[str, Any]) -> Array:
    """Rotary embedding of [tokens, heads, size]: the two halves of a head are the axes of its planes."""
    half = heads.shape[2] // 2
    speeds = config["rope_theta"] ** (-np.arange(half) / half)
    scaling = config.get("rope_scaling") or {}
    if scaling.get("rope_type") == "llama3":
        waves = scaling["original_max_position_embeddings"] * speeds / (2 * np.pi)
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        kept = np.clip((waves - low) / (high - low), 0, 1)
        speeds = speeds * (kept + (1 - kept) / scaling["factor"])
    angles = np.arange(len(heads))[:, None, None] * speeds
    first, second = heads[..., :half], heads[..., half:]
    turned = (first * np.cos(angles) - second * np.sin(angles), second * np.cos(angles) + first * np.sin(angles))
    return np.concatenate(turned, axis=-1)


def attend(query: Array, key: Array, value: Array, window: int | None = None) -> Array:
    """Causal attention of [tokens, heads, size]; each key head serves a group of query heads."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat(groups, axis=1), value.repeat(groups, axis=1)
    scores = np.einsum("qhd,khd->hqk", query, key) / np.sqrt(query.shape[2])
    distance = np.arange(len(query))[:, None] - np.arange(len(query))
    hidden = (distance < 0) if window is None else (distance < 0) | (distance >= window)
    weights = np.exp(log_softmax(np.where(hidden, -np.inf, scores)))
    return np.asarray(np.einsum("hqk,khd->qhd", weights, value)).reshape(len(query), -1)


def log_softmax(x: Array) -> Array:
    """Over the last axis."""
    shifted = x - x.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
