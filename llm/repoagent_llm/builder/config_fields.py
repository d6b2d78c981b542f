"""What the numbers of a config.json may be, whatever architecture reads them. A file from outside may hold anything."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from repoagent_llm.types.executor_errors import shown

_WIDTH: Final = 1 << 24
_HEADS: Final = 1 << 16
_LAYERS: Final = 4096
_TOKENS: Final = 2**31 - 1
_LARGEST: Final = 1e15
_LONGEST: Final = 100
"""Characters of a name."""
_Check = tuple[str, Callable[[Any], bool]]


def _whole(low: int, high: int) -> _Check:
    return f"a whole number from {low} to {high}", lambda value: type(value) is int and low <= value <= high


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < _LARGEST


def _ids(value: Any) -> bool:
    listed = value if isinstance(value, list) else [value]
    return len(listed) <= _HEADS and all(type(item) is int and abs(item) <= _TOKENS for item in listed)


def _layers(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= _LAYERS and all(type(item) in (int, bool) for item in value)


_POSITIVE: Final[_Check] = ("a number > 0", lambda value: _number(value) and value > 0)
_ANY: Final[_Check] = ("a finite number", _number)
_OTHER_THAN_ZERO: Final[_Check] = ("a number other than 0", lambda value: _number(value) and value != 0)
_SMALL: Final[_Check] = ("a number from 0 to 1", lambda value: _number(value) and 0 <= value < 1)
_PART: Final[_Check] = ("a number above 0, and at most 1", lambda value: _number(value) and 0 < value <= 1)
_TRUTH: Final[_Check] = ("true or false", lambda value: type(value) is bool)
_OBJECT: Final[_Check] = ("an object", lambda value: isinstance(value, dict))
_NUMBERS: Final[_Check] = (f"a list of at most {_LAYERS} numbers", _layers)
_TEXT: Final[_Check] = ("a short text", lambda value: isinstance(value, str) and len(value) <= _LONGEST)
_TOKEN: Final[_Check] = ("the number of a token, or a list of them", _ids)
_FIELDS: Final[Mapping[str, _Check]] = {
    **dict.fromkeys(("vocab_size", "hidden_size", "intermediate_size", "n_embd", "n_inner"), _whole(1, _WIDTH)),
    **dict.fromkeys(("moe_intermediate_size", "shared_expert_intermediate_size"), _whole(0, _WIDTH)),
    **dict.fromkeys(("num_hidden_layers", "n_layer"), _whole(1, _LAYERS)),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim", "n_head"), _whole(1, _HEADS)),
    **dict.fromkeys(("num_experts", "num_local_experts", "num_experts_per_tok"), _whole(0, _HEADS)),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), _whole(1, _TOKENS)),
    **dict.fromkeys(("sliding_window", "max_window_layers"), _whole(0, _TOKENS)),
    **dict.fromkeys(("sliding_window_pattern", "no_rope_layer_interval", "decoder_sparse_step"), _whole(1, _LAYERS)),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_epsilon"), _SMALL),
    **dict.fromkeys(
        ("rope_theta", "rope_local_base_freq", "query_pre_attn_scalar", "original_max_position_embeddings"), _POSITIVE
    ),
    **dict.fromkeys(("embedding_multiplier", "attention_multiplier", "residual_multiplier"), _ANY),
    "logits_scaling": _OTHER_THAN_ZERO,
    "partial_rotary_factor": _PART,
    **dict.fromkeys(("tie_word_embeddings", "use_sliding_window", "norm_topk_prob"), _TRUTH),
    **dict.fromkeys(("rope_parameters", "rope_scaling", "text_config"), _OBJECT),
    **dict.fromkeys(("no_rope_layers", "mlp_only_layers"), _NUMBERS),
    **dict.fromkeys(("model_type", "hidden_act", "hidden_activation", "activation_function"), _TEXT),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), _TOKEN),
}


def check_fields(config: Any) -> None:
    """Make sure that what a config.json has is possible; null counts as absent.

    Raises:
        ValueError: it is not an object, or a key has another value than it may have; the key is named.
    """
    if not isinstance(config, dict):
        raise ValueError("it must be a JSON object")
    for key, value in config.items():
        if value is None or key not in _FIELDS:
            continue
        expected, is_possible = _FIELDS[key]
        if not is_possible(value):
            raise ValueError(f"the key '{key}' must be {expected}, not {shown(value)}")
