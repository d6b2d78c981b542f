"""Checkpoints with random weights, for tests, examples and benchmarks. The same seed gives the same weights."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from repoagent_llm.builder.safetensors import write_safetensors
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

__all__ = ["synthetic_checkpoint"]

_TINY: dict[str, Any] = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_TINY_GPT2: dict[str, Any] = {
    "vocab_size": 96,
    "n_embd": 64,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "layer_norm_epsilon": 1e-5,
    "activation_function": "gelu_new",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gpt2": "GPT2LMHeadModel",
}


def synthetic_checkpoint(folder: Path, kind: str = "llama", *, seed: int = 0, scale: float = 0.2, **shape: Any) -> Path:
    """Write config.json and model.safetensors of a ``kind`` of decoder.

    ``shape`` overrides entries of config.json; without it the model has about 30 000 parameters. ``scale``: standard
    deviation of the weights.
    """
    if kind not in _ARCHITECTURES:
        raise UnsupportedFeatureError(f"a synthetic {kind!r}", f"known are {', '.join(_ARCHITECTURES)}")
    config = {
        **(_TINY_GPT2 if kind == "gpt2" else _TINY),
        **shape,
        "model_type": kind,
        "architectures": [_ARCHITECTURES[kind]],
        "torch_dtype": "float32",
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    shapes = _gpt2_shapes(config) if kind == "gpt2" else _llama_shapes(config)
    write_safetensors(folder / "model.safetensors", _random(shapes, seed, scale))
    return folder


def _random(shapes: Mapping[str, tuple[int, ...]], seed: int, scale: float) -> dict[str, npt.NDArray[np.float32]]:
    """Norm scales around one, everything else around zero."""
    source = np.random.default_rng(seed)
    tensors = {}
    for name, shape in shapes.items():
        values = source.standard_normal(shape, np.float32) * np.float32(scale)
        is_norm = name.endswith(("norm.weight", "ln_1.weight", "ln_2.weight", "ln_f.weight"))
        tensors[name] = values + 1 if is_norm else values
    return tensors


def _llama_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden, kind, experts = config["hidden_size"], config["model_type"], config.get("num_experts", 0)
    inner = config["moe_intermediate_size"] if experts else config["intermediate_size"]
    head = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = head * config["num_attention_heads"], head * config["num_key_value_heads"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], hidden)}
    for number in range(config["num_hidden_layers"]):
        stem = f"model.layers.{number}."
        for name, size in (("q", queries), ("k", keys), ("v", keys)):
            shapes[f"{stem}self_attn.{name}_proj.weight"] = (size, hidden)
            if kind == "qwen2":
                shapes[f"{stem}self_attn.{name}_proj.bias"] = (size,)
        if kind in ("qwen3", "qwen3_moe"):
            shapes[f"{stem}self_attn.q_norm.weight"] = shapes[f"{stem}self_attn.k_norm.weight"] = (head,)
        shapes[f"{stem}self_attn.o_proj.weight"] = (hidden, queries)
        if experts:
            shapes[f"{stem}mlp.gate.weight"] = (experts, hidden)
        for mlp in [f"{stem}mlp.experts.{expert}" for expert in range(experts)] or [f"{stem}mlp"]:
            shapes[f"{mlp}.gate_proj.weight"] = shapes[f"{mlp}.up_proj.weight"] = (inner, hidden)
            shapes[f"{mlp}.down_proj.weight"] = (hidden, inner)
        shapes[f"{stem}input_layernorm.weight"] = shapes[f"{stem}post_attention_layernorm.weight"] = (hidden,)
    shapes["model.norm.weight"] = (hidden,)
    if not config["tie_word_embeddings"]:
        shapes["lm_head.weight"] = (config["vocab_size"], hidden)
    return shapes


def _gpt2_shapes(config: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    hidden = config["n_embd"]
    inner = config.get("n_inner") or 4 * hidden
    shapes: dict[str, tuple[int, ...]] = {
        "transformer.wte.weight": (config["vocab_size"], hidden),
        "transformer.wpe.weight": (config["n_positions"], hidden),
    }
    for number in range(config["n_layer"]):
        stem = f"transformer.h.{number}."
        for name, size in (("attn.c_attn", 3 * hidden), ("attn.c_proj", hidden), ("mlp.c_fc", inner)):
            shapes[f"{stem}{name}.weight"], shapes[f"{stem}{name}.bias"] = (hidden, size), (size,)
        shapes[f"{stem}mlp.c_proj.weight"], shapes[f"{stem}mlp.c_proj.bias"] = (inner, hidden), (hidden,)
        for name in ("ln_1", "ln_2"):
            shapes[f"{stem}{name}.weight"] = shapes[f"{stem}{name}.bias"] = (hidden,)
    shapes["transformer.ln_f.weight"] = shapes["transformer.ln_f.bias"] = (hidden,)
    return shapes
