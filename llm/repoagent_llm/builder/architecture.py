"""Architecture: what config.json of a checkpoint says about the decoder's shape, and its rotary tables."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.errors import ConfigError
from repoagent.nested_text import read_json
from repoagent_llm.builder.config_fields import check_fields
from repoagent_llm.runner.paged_folder import ExpertLayout
from repoagent_llm.runner.rope import rope_kind, rope_speeds
from repoagent_llm.types.executor_errors import UnsupportedFeatureError


@dataclass(frozen=True, slots=True)
class _Family:
    """How a ``model_type`` differs from Llama.

    ``head_norms``: queries and keys are normalised per "head", or over "all" heads. ``windows``: "always" where a
    size is given, "optional" where use_sliding_window says so. ``tied``: whether the embedding is the head where
    config.json does not say.
    """

    head_norms: str = "none"
    windows: str = "none"
    tied: bool = False
    experts: bool = False
    gate: str = "silu"


_FAMILIES: Final = {
    "llama": _Family(),
    "mistral": _Family(windows="always"),
    "qwen2": _Family(windows="optional"),
    "qwen3": _Family("head", "optional"),
    "qwen2_moe": _Family(windows="optional", experts=True),
    "qwen3_moe": _Family("head", "optional", experts=True),
    "mixtral": _Family(windows="always", experts=True),
    "gpt_oss": _Family(windows="always", experts=True, gate="clamped"),
    "gemma3_text": _Family("head", "always", tied=True, gate="gelu"),
    "phi3": _Family(windows="always"),
    "olmo2": _Family("all"),
    "granite": _Family(),
    "smollm3": _Family(windows="optional", tied=True),
}
_GATES: Final = {"silu": ("silu",), "clamped": ("silu",), "gelu": ("gelu_pytorch_tanh",)}
_CAPS: Final = ("gemma2", "gemma3n_text")
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
_MOST_LAYERS: Final = 4096
_MOST_ANGLES: Final = 1 << 28


@dataclass(frozen=True, slots=True)
class Experts(ExpertLayout):
    """``layers``: which have experts; the others are as usual."""

    layers: frozenset[int]


@dataclass(frozen=True, slots=True)
class Multipliers:
    """Numbers that scale embeddings, scores of attention, what a layer adds, and logits."""

    embedding: float = 1.0
    attention: float = 1.0
    residual: float = 1.0
    logits: float = 1.0


@dataclass(frozen=True, slots=True)
class Architecture:
    """A decoder's shape. GPT-2 has no rotary embedding.

    ``windows``: how many tokens each layer attends to; 0 is all. ``ropes``: ``rope_parameters``, one or more;
    ``layer_ropes``: which of them each layer has; -1 is none. ``rotary_size``: how many columns of a head turn.
    ``gate``: the activation of the MLP's gate: silu, gelu, clamped (gpt-oss) or none (GPT-2).
    """

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
    begin_id: int | None
    end_ids: tuple[int, ...]
    pad_id: int | None
    rotary_size: int
    windows: tuple[int, ...]
    ropes: tuple[Mapping[str, Any], ...]
    layer_ropes: tuple[int, ...]
    multipliers: Multipliers
    head_norms: str = "none"
    gate: str = "silu"
    experts: Experts | None = None

    @property
    def is_gpt2(self) -> bool:
        """Learned positions, layer norm, biases, one matrix for query, key and value."""
        return self.kind == "gpt2"

    @property
    def sliding_window(self) -> int | None:
        """Of the first layer, where all are alike; None attends to everything before."""
        return self.windows[0] or None

    def check_onnx(self, form: str) -> None:
        """Raise ``UnsupportedFeatureError`` for what the forms of ONNX graphs do not have."""
        usual = Multipliers(attention=self.head_size**-0.5)
        reasons = {
            "experts": self.experts is not None,
            "layers of several kinds": len(set(self.windows)) > 1 or len(set(self.layer_ropes)) > 1,
            "a partial rotary embedding": self.rotary_size not in (0, self.head_size),
            "other norms": self.kind in ("gemma3_text", "olmo2"),
            "other multipliers": self.multipliers != usual,
            "a rope that depends on the length served": any(
                rope_kind(rope) == "dynamic"
                or (rope_kind(rope) == "longrope" and rope.get("short_factor") != rope.get("long_factor"))
                for rope in self.ropes
            ),
        }
        found = [reason for reason, holds in reasons.items() if holds]
        if found:
            raise UnsupportedFeatureError(
                f"{self.kind} in the {form} form", f"it has {found[0]}; take the form paged, which OpenVINO runs"
            )


def read_architecture(folder: Path) -> Architecture:
    """Read ``config.json``; raises ``ConfigError`` for a bad file, ``UnsupportedFeatureError`` for an unknown model."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError("File does not exist", source=str(path))
    try:
        config = read_json(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"cannot be read: {error}", source=str(path)) from error
    return parse_architecture(config, str(path))


def parse_architecture(config: Any, source: str) -> Architecture:
    """What config.json holds, as an architecture; raises as ``read_architecture``. ``source``: where it comes from."""
    try:
        check_fields(config)
        kind = config.get("model_type")
        if kind == "gemma3" and isinstance(config.get("text_config"), dict):  # with images, which are left out
            config, kind = {"eos_token_id": config.get("eos_token_id"), **config["text_config"]}, "gemma3_text"
            check_fields(config)
        _check_rounding(kind, config.get("quantization_config"))
        if kind == "gpt2":
            return _checked(_gpt2(config))
        if kind in _FAMILIES:
            return _checked(_llama_like(kind, config))
    except KeyError as error:
        raise ConfigError(f"the key {error} is missing", source=source) from error
    except (ArithmeticError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"cannot be read: {error}", source=source) from error
    if kind in _CAPS:
        raise UnsupportedFeatureError(f"model_type {kind!r}", "it caps the scores of attention, which no runner has")
    raise UnsupportedFeatureError(f"model_type {kind!r}", f"the builder knows gpt2, {', '.join(_FAMILIES)}")


def _check_rounding(kind: object, found: object) -> None:
    if found and not (kind == "gpt_oss" and isinstance(found, dict) and found.get("quant_method") == "mxfp4"):
        raise UnsupportedFeatureError("a quantized checkpoint", "the builder rounds weights itself (INT4)")


def _checked(shape: Architecture) -> Architecture:
    for name in _SIZES:
        value = getattr(shape, name)
        if type(value) is not int or value < 1:
            raise ValueError(f"{name} must be an integer > 0, not {value!r}")
    if shape.heads % shape.kv_heads:
        raise ValueError(f"{shape.heads} heads cannot share {shape.kv_heads} KV heads evenly")
    if shape.rotary_size % 2 or not 0 <= shape.rotary_size <= shape.head_size:
        raise ValueError(f"{shape.rotary_size} of {shape.head_size} columns of a head cannot turn in pairs")
    for rope in shape.ropes:
        for length in (shape.context_length, 1):  # of longrope each has a list of its own
            rope_speeds(rope, shape.rotary_size, length)
    return shape


def _ids(value: object) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(int(item) for item in value) if isinstance(value, list) else (int(str(value)),)


def _gpt2(config: Mapping[str, Any]) -> Architecture:
    hidden, heads, layers = config["n_embd"], config["n_head"], _layer_count(config["n_layer"])
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
        layers=layers,
        heads=heads,
        kv_heads=heads,
        head_size=hidden // heads,
        intermediate_size=config.get("n_inner") or 4 * hidden,
        context_length=config.get("n_positions", 1024),
        norm_epsilon=config.get("layer_norm_epsilon", 1e-5),
        tied=config.get("tie_word_embeddings", True),
        begin_id=config.get("bos_token_id"),
        end_ids=_ids(config.get("eos_token_id")),
        pad_id=config.get("pad_token_id"),
        rotary_size=0,
        windows=(0,) * layers,
        ropes=(),
        layer_ropes=(-1,) * layers,
        multipliers=Multipliers(attention=(hidden // heads) ** -0.5),
        gate="none",
    )


def _layer_count(value: object) -> int:
    if type(value) is not int or not 1 <= value <= _MOST_LAYERS:
        raise ValueError(f"layers must be an integer > 0, not {value!r}")
    return value


def _llama_like(kind: str, config: Mapping[str, Any]) -> Architecture:
    family = _FAMILIES[kind]
    _check_activation(kind, family, config)
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    layers = _layer_count(config["num_hidden_layers"])
    size = config.get("head_dim") or hidden // heads
    kinds = _layer_kinds(kind, config, layers)
    ropes, partial = _ropes(kind, config)
    experts = _experts(kind, config, layers) if family.experts else None
    return Architecture(
        kind=kind,
        vocab_size=config["vocab_size"],
        hidden_size=hidden,
        layers=layers,
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_size=size,
        intermediate_size=config["intermediate_size"],
        context_length=_context_length(config, ropes[0]),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        tied=config.get("tie_word_embeddings", family.tied),
        begin_id=config.get("bos_token_id"),
        end_ids=_ids(config.get("eos_token_id")),
        pad_id=config.get("pad_token_id"),
        rotary_size=int(size * partial),
        windows=_windows(kind, family, config, kinds),
        ropes=ropes,
        layer_ropes=_layer_ropes(config, kinds, len(ropes), layers),
        multipliers=_multipliers(kind, config, size),
        head_norms=family.head_norms,
        gate=family.gate,
        experts=experts,
    )


def _check_activation(kind: str, family: _Family, config: Mapping[str, Any]) -> None:
    found = config.get("hidden_activation") or config.get("hidden_act") or _GATES[family.gate][0]
    if found not in _GATES[family.gate]:
        raise UnsupportedFeatureError(f"{kind} with activation {found!r}")
    if config.get("attn_logit_softcapping") or config.get("final_logit_softcapping"):
        raise UnsupportedFeatureError(f"{kind} with soft caps", "the operators of attention have none")
    if config.get("use_bidirectional_attention"):
        raise UnsupportedFeatureError(f"{kind} with attention in both directions")
    if kind == "gpt_oss" and (config.get("swiglu_limit", 7.0), config.get("swiglu_alpha", 1.702)) != (7.0, 1.702):
        raise UnsupportedFeatureError("gpt_oss with other limits of its activation")


def _layer_kinds(kind: str, config: Mapping[str, Any], layers: int) -> Sequence[str]:
    """Of each layer "sliding_attention" or "full_attention"; empty where all are alike."""
    listed = config.get("layer_types")
    if listed is None and kind == "gemma3_text":
        pattern = config.get("sliding_window_pattern", 6)
        return ["sliding_attention" if (i + 1) % pattern else "full_attention" for i in range(layers)]
    if listed is None and kind == "gpt_oss":
        return ["full_attention" if i % 2 else "sliding_attention" for i in range(layers)]
    if listed is None:
        return ()
    if not isinstance(listed, list) or len(listed) != layers:
        raise ValueError(f"layer_types must be a list of {layers} names")
    unknown = set(map(str, listed)) - {"sliding_attention", "full_attention"}
    if unknown:
        raise UnsupportedFeatureError(f"{kind} with layers of the type {min(unknown)[:60]!r}")
    return listed


def _windows(kind: str, family: _Family, config: Mapping[str, Any], kinds: Sequence[str]) -> tuple[int, ...]:
    layers: int = config["num_hidden_layers"]
    window: Any = config.get("sliding_window")
    wanted = config.get("use_sliding_window") if family.windows == "optional" else family.windows == "always"
    if not window or not wanted:
        return (0,) * layers
    if type(window) is not int or not 0 < window < 2**31:
        raise ValueError(f"sliding_window must be an integer > 0, not {window!r}")
    if kinds:
        return tuple(window if name == "sliding_attention" else 0 for name in kinds)
    if kind in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", 28)
        return tuple(window if number >= first else 0 for number in range(layers))
    if family.windows == "optional" and kind != "qwen3_moe":
        raise UnsupportedFeatureError(f"{kind} with a sliding window, but without layer_types")
    return (window,) * layers


def _ropes(kind: str, config: Mapping[str, Any]) -> tuple[tuple[Mapping[str, Any], ...], float]:
    """The rotary embeddings, that of full attention first, and which part of a head turns."""
    # Newer files keep theta and scaling together under rope_parameters, for each kind of layer where these differ.
    given = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "full_attention" in given:
        kinds = [name for name in ("full_attention", "sliding_attention") if name in given]
        if not all(isinstance(given[name] or {}, dict) for name in kinds):
            raise ValueError(f"the key 'rope_parameters' must have an object for each of {', '.join(kinds)}")
        listed = [dict(given[name] or {}) for name in kinds]
    elif kind == "gemma3_text":
        listed = [given, {"rope_theta": config.get("rope_local_base_freq") or 10000.0}]
        given.setdefault("rope_theta", config.get("rope_theta") or 1e6)
    else:
        listed = [given]
    partial = config.get("partial_rotary_factor") or 1.0
    for rope in listed:
        check_fields(rope)
        partial = rope.pop("partial_rotary_factor", None) or partial
        _complete(rope, config)
    return tuple(listed), partial


def _complete(rope: dict[str, Any], config: Mapping[str, Any]) -> None:
    """Fill in what the file says elsewhere, so that ``rope`` describes itself."""
    if rope_kind(rope) == "su":  # an older name
        rope["rope_type"] = "longrope"
    if rope.get("rope_theta") is None:
        rope["rope_theta"] = config.get("rope_theta") or 10000.0
    kind, original, longest = rope_kind(rope), "original_max_position_embeddings", config["max_position_embeddings"]
    if kind == "dynamic":
        rope[original] = longest
    elif kind in ("yarn", "longrope"):
        rope[original] = config.get(original) or rope.get(original) or longest
        if rope.get("factor") is None:
            rope["factor"] = longest / rope[original]


def _context_length(config: Mapping[str, Any], rope: Mapping[str, Any]) -> Any:
    """Files with yarn or dynamic often give the length before it was stretched."""
    length = config["max_position_embeddings"]
    if rope_kind(rope) in ("yarn", "dynamic"):
        return max(length, int(rope["original_max_position_embeddings"] * rope["factor"]))
    return length


def _layer_ropes(config: Mapping[str, Any], kinds: Sequence[str], ropes: int, layers: int) -> tuple[int, ...]:
    if ropes > 1:
        return tuple(int(name == "sliding_attention") for name in kinds)
    listed = config.get("no_rope_layers")  # where there is 1 it has one
    if listed is None and config["model_type"] == "smollm3":
        listed = [int((number + 1) % config.get("no_rope_layer_interval", 4) != 0) for number in range(layers)]
    if not listed:
        return (0,) * layers
    if len(listed) != layers:
        raise ValueError(f"no_rope_layers must be a list of {layers} numbers")
    return tuple(0 if turns else -1 for turns in listed)


def _multipliers(kind: str, config: Mapping[str, Any], size: int) -> Multipliers:
    if kind == "granite":
        return Multipliers(
            float(config.get("embedding_multiplier", 1.0)),
            float(config.get("attention_multiplier", 1.0)),
            float(config.get("residual_multiplier", 1.0)),
            1.0 / float(config.get("logits_scaling", 1.0)),
        )
    if kind == "gemma3_text":
        embedding = float(np.sqrt(np.float32(config["hidden_size"])))
        return Multipliers(embedding, float(config.get("query_pre_attn_scalar", 256)) ** -0.5)
    return Multipliers(attention=size**-0.5)


def _experts(kind: str, config: Mapping[str, Any], layers: int) -> Experts:
    count, used = config.get("num_experts") or config["num_local_experts"], config.get("num_experts_per_tok", 2)
    inner = config.get("moe_intermediate_size") or config["intermediate_size"]
    shared = config.get("shared_expert_intermediate_size", 5632) if kind == "qwen2_moe" else 0
    step, plain = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers") or ()
    if any(type(value) is not int or value < 1 for value in (count, used, inner, step)) or used > count:
        raise ValueError(f"{used} of {count} experts of size {inner} are not possible")
    router = "chosen"
    if kind in ("qwen2_moe", "qwen3_moe"):
        router = "shares" if config.get("norm_topk_prob") else "all"
    sparse = frozenset(i for i in range(layers) if i not in plain and (i + 1) % step == 0)
    return Experts(count, used, inner, shared, router, sparse)


def rope_tables(shape: Architecture) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines [context length, head size / 2].

    Raises:
        UnsupportedFeatureError: they would take more memory than such a graph is worth.
    """
    if shape.context_length * shape.rotary_size > _MOST_ANGLES:
        raise UnsupportedFeatureError(
            f"a table of rotary embeddings for max_position_embeddings of {shape.context_length}",
            "a graph holds it whole; take the form paged, or lower max_position_embeddings in config.json",
        )
    speeds, factor = rope_speeds(shape.ropes[0], shape.rotary_size, shape.context_length)
    angles = np.outer(np.arange(shape.context_length, dtype=np.float64), speeds)
    return (np.cos(angles) * factor).astype(np.float32), (np.sin(angles) * factor).astype(np.float32)
