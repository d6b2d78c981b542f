"""Architecture: what config.json of a checkpoint says about the decoder's shape, and its rotary tables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.errors import ConfigError, InvalidArgumentError
from repoagent.nested_text import read_json
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

__all__ = ["Architecture", "read_architecture", "rope_speeds", "rope_tables"]


def _number(scaling: Mapping[str, Any], name: str) -> float:
    value = scaling.get(name)
    if not isinstance(value, (int, float)) or not value > 0:
        raise InvalidArgumentError(f"config.json: rope scaling needs {name}, a number > 0, not {value!r}")
    return float(value)


_LLAMA_LIKE: Final = ("llama", "mistral", "qwen2", "qwen3")
_SIZES: Final = (
    "vocab_size",
    "hidden_size",
    "layers",
    "heads",
    "kv_heads",
    "head_size",
    "intermediate_size",
    "context_length",
)


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder's shape. ``sliding_window``: None attends to everything before. GPT-2 has no rotary embedding."""

    kind: str
    vocab_size: int
    hidden_size: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate_size: int
    context_length: int
    norm_epsilon: float
    tied: bool
    rope_theta: float
    rope_scaling: Mapping[str, Any]
    sliding_window: int | None
    begin_id: int | None
    end_ids: tuple[int, ...]
    pad_id: int | None

    @property
    def is_gpt2(self) -> bool:
        """Learned positions, layer norm, biases, one matrix for query, key and value."""
        return self.kind == "gpt2"

    @property
    def norms_heads(self) -> bool:
        """Queries and keys are normalised per head (Qwen 3)."""
        return self.kind == "qwen3"


def read_architecture(folder: Path) -> Architecture:
    """Read ``config.json``; raises ``ConfigError`` for a bad file, ``UnsupportedFeatureError`` for an unknown model."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError("File does not exist", source=str(path))
    try:
        config = read_json(path.read_text(encoding="utf-8"))
        kind = config.get("model_type")
        if config.get("quantization_config"):
            raise UnsupportedFeatureError("a quantized checkpoint", "the builder rounds weights itself (INT4)")
        if kind == "gpt2":
            return _checked(_gpt2(config))
        if kind in _LLAMA_LIKE:
            return _checked(_llama_like(kind, config))
    except KeyError as error:
        raise ConfigError(f"the key {error} is missing", source=str(path)) from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", source=str(path)) from error
    raise UnsupportedFeatureError(f"model_type {kind!r}", f"the builder knows gpt2, {', '.join(_LLAMA_LIKE)}")


def _checked(shape: Architecture) -> Architecture:
    for name in _SIZES:
        value = getattr(shape, name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be an integer > 0, not {value!r}")
    if shape.heads % shape.kv_heads:
        raise ValueError(f"{shape.heads} heads cannot share {shape.kv_heads} KV heads evenly")
    return shape


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(str(value)),)


def _gpt2(config: Mapping[str, Any]) -> Architecture:
    hidden, heads = config["n_embd"], config["n_head"]
    if config.get("activation_function", "gelu_new") not in ("gelu_new", "gelu_pytorch_tanh"):
        raise UnsupportedFeatureError(f"GPT-2 with activation {config['activation_function']!r}")
    if config.get("scale_attn_by_inverse_layer_idx"):
        raise UnsupportedFeatureError("GPT-2 with scale_attn_by_inverse_layer_idx")
    if not config.get("scale_attn_weights", True):
        raise UnsupportedFeatureError("GPT-2 without scale_attn_weights")
    return Architecture(
        kind="gpt2",
        vocab_size=config["vocab_size"],
        hidden_size=hidden,
        layers=config["n_layer"],
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        intermediate_size=config.get("n_inner") or 4 * hidden,
        context_length=config.get("n_positions", 1024),
        norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
        tied=config.get("tie_word_embeddings", True),
        rope_theta=0.0,
        rope_scaling={},
        sliding_window=None,
        begin_id=config.get("bos_token_id"),
        end_ids=_ids(config.get("eos_token_id")),
        pad_id=config.get("pad_token_id"),
    )


def _llama_like(kind: str, config: Mapping[str, Any]) -> Architecture:
    if config.get("hidden_act", "silu") != "silu":
        raise UnsupportedFeatureError(f"{kind} with activation {config['hidden_act']!r}")
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    # Newer files keep theta and scaling together under rope_parameters.
    rope = dict(config.get("rope_scaling") or config.get("rope_parameters") or {})
    if (rope.pop("partial_rotary_factor", None) or config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedFeatureError(f"{kind} with a partial rotary embedding")
    theta = rope.pop("rope_theta", None) or config.get("rope_theta", 10000.0)
    return Architecture(
        kind=kind,
        vocab_size=config["vocab_size"],
        hidden_size=hidden,
        layers=config["num_hidden_layers"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or hidden // heads,
        intermediate_size=config["intermediate_size"],
        context_length=config["max_position_embeddings"],
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        tied=config.get("tie_word_embeddings", False),
        rope_theta=theta,
        rope_scaling=rope,
        sliding_window=_window(kind, config),
        begin_id=config.get("bos_token_id"),
        end_ids=_ids(config.get("eos_token_id")),
        pad_id=config.get("pad_token_id"),
    )


def _window(kind: str, config: Mapping[str, Any]) -> int | None:
    window = config.get("sliding_window")
    if kind == "mistral":
        return window
    if not config.get("use_sliding_window") or window is None:
        return None
    raise UnsupportedFeatureError(f"{kind} with a sliding window in some layers only")


def rope_speeds(shape: Architecture) -> npt.NDArray[np.float64]:
    """By how much a token's planes turn against those of the one before it [head size / 2]."""
    exponents = np.arange(0, shape.head_size, 2, dtype=np.float64) / shape.head_size
    return _scaled(1.0 / shape.rope_theta**exponents, shape.rope_scaling)


def rope_tables(shape: Architecture) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines [context length, head size / 2]."""
    angles = np.outer(np.arange(shape.context_length, dtype=np.float64), rope_speeds(shape))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _scaled(frequencies: npt.NDArray[np.float64], scaling: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return frequencies
    if kind == "linear":
        return frequencies / _number(scaling, "factor")
    if kind == "llama3":
        return _llama3(frequencies, scaling)
    raise UnsupportedFeatureError(f"rope scaling {kind!r}", "the builder knows default, linear and llama3")


def _llama3(frequencies: npt.NDArray[np.float64], scaling: Mapping[str, Any]) -> npt.NDArray[np.float64]:
    """Slow waves are stretched by ``factor``, fast ones kept, those between blended."""
    factor = _number(scaling, "factor")
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    turns = _number(scaling, "original_max_position_embeddings") * frequencies / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - blend) * frequencies / factor + blend * frequencies
