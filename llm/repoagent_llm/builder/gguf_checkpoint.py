"""A GGUF file as a checkpoint: its keys as a config.json, its tensors under the names of Hugging Face."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.errors import InvalidArgumentError
from repoagent_llm.builder.architecture import Architecture, parse_architecture
from repoagent_llm.builder.gguf import BLOCK, Floats, GgufFile, q4_0_levels, q8_0_levels
from repoagent_llm.builder.gguf_tokenizer import GgufTokenizer
from repoagent_llm.builder.products import Blocks, WideBlocks, pack
from repoagent_llm.types.executor_errors import UnsupportedFeatureError, shown

GGUF_ENDING: Final = ".gguf"
_PART: Final = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
_MOST_PARTS: Final = 256


@dataclass(frozen=True, slots=True)
class _Family:
    """What an architecture of llama.cpp is here.

    ``turned``: rows of queries and keys lie in pairs that turn. ``roles``: those that are called otherwise. ``window``:
    layers may have one. ``norm``: what the file's norms have more than the checkpoint's.
    """

    kind: str
    turned: bool = False
    roles: Mapping[str, str] = field(default_factory=dict)
    window: bool = False
    norm: int = 0


_NORMS_BEHIND: Final = {
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_FAMILIES: Final = {
    "llama": _Family("llama", turned=True),
    "qwen2": _Family("qwen2"),
    "qwen2moe": _Family("qwen2_moe"),
    "qwen3": _Family("qwen3"),
    "qwen3moe": _Family("qwen3_moe"),
    "gemma3": _Family("gemma3_text", roles=_NORMS_BEHIND, window=True, norm=1),
    "phi3": _Family("phi3", roles={"self_attn.qkv_proj": "attn_qkv", "mlp.gate_up_proj": "ffn_up"}, window=True),
    "granite": _Family("granite", turned=True),
    "smollm3": _Family("smollm3", turned=True),
    "olmo2": _Family("olmo2", roles=_NORMS_BEHIND),
}
_MIXTRAL: Final = "mixtral"
_LAYER: Final = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "mlp.gate": "ffn_gate_inp",
    "mlp.shared_expert_gate": "ffn_gate_inp_shexp",
    "mlp.shared_expert.gate_proj": "ffn_gate_shexp",
    "mlp.shared_expert.up_proj": "ffn_up_shexp",
    "mlp.shared_expert.down_proj": "ffn_down_shexp",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
_EXPERT: Final = {
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
}
_WHOLE: Final = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_IN_LAYER: Final = re.compile(
    r"model\.layers\.(\d{1,4})\.(?:([\w.]{1,64})\.experts\.(\d{1,8})\.)?([\w.]{1,64})\.(weight|bias)"
)
_FACTORS: Final = "rope_freqs.weight"
_LENGTHS: Final = ("long", "short")
_LONG, _SHORT = (f"rope_factors_{length}.weight" for length in _LENGTHS)
_GEMMA_27B: Final = 62
"""Layers of the one whose scores are not scaled by the size of a head; the file does not have the scale."""
_MOST: Final = 1 << 31
_LARGEST: Final = 1e30


def gguf_parts(name: str) -> list[str]:
    """The names of all files of the model whose only or first file is ``name``.

    Raises:
        InvalidArgumentError: it is another part, or there are too many.
    """
    found = _PART.fullmatch(name)
    if found is None:
        return [name]
    number, count = int(found[2]), int(found[3])
    if number != 1 or not 1 <= count <= _MOST_PARTS:
        raise InvalidArgumentError(
            f"{name[-100:]}: part {number} of {count}; name the first part, and of {_MOST_PARTS} parts at most"
        )
    return [f"{found[1]}-{part:05}-of-{found[3]}.gguf" for part in range(1, count + 1)]


def first_parts(names: Iterable[str]) -> list[str]:
    """The names of GGUF files, sorted, but of a model in several only its first one."""
    parts = [(name, _PART.fullmatch(name)) for name in sorted(names) if name.endswith(GGUF_ENDING)]
    return [name for name, part in parts if part is None or int(part[2]) == 1]


def find_gguf(place: Path) -> Path | None:
    """The GGUF file that ``place`` is, or that a folder without config.json has."""
    if place.is_file():
        return place if place.suffix == GGUF_ENDING else None
    found = first_parts(path.name for path in place.glob(f"*{GGUF_ENDING}"))
    if not found or (place / "config.json").exists():
        return None
    if len(found) > 1:
        raise InvalidArgumentError(f"{place} has {len(found)} models of the format GGUF; name one of them")
    return place / found[0]


class GgufCheckpoint:
    """A CheckpointTensors. Each tensor is read when it is asked for."""

    @classmethod
    def open(cls, path: Path) -> "GgufCheckpoint":
        """That of a file, with the parts that lie beside it; raises as the constructor does."""
        paths = [path.with_name(name) for name in gguf_parts(path.name)]
        if missing := [one.name for one in paths if not one.is_file()]:
            raise InvalidArgumentError(f"{path}: {missing[0][-100:]}, a part of the same model, is missing")
        return cls(*paths)

    def __init__(self, path: Path, *others: Path) -> None:
        """Read the head, and make sure that it describes a decoder that is known. ``others``: see GgufFile.

        Raises:
            InvalidArgumentError: the file is damaged, or contradicts itself.
            UnsupportedError: there is something in it that is not read here.
        """
        self._file = GgufFile(path, *others)
        self._name = self._text("general.architecture")
        if self._name not in _FAMILIES:
            known = ", ".join(_FAMILIES)
            raise UnsupportedFeatureError(f"{path}: the architecture {self._name[:60]!r}", f"read are {known}")
        count = self._integer("split.count", 0, _MOST, 0)
        if max(1, count) != 1 + len(others) or self._integer("split.no", 0, _MOST, 0):
            raise InvalidArgumentError(
                f"{path}: one of {count} parts, the first of which has a name that ends with -00001-of-{count:05}.gguf"
            )
        family = self._family = _FAMILIES[self._name]
        self._heads = {}
        self.config = self._config(family)
        self.shape: Architecture = parse_architecture(self.config, str(path))
        if family.turned:
            if self.shape.head_size % 2:
                raise InvalidArgumentError(
                    f"{path}: {self.shape.head_size} columns of a head cannot turn in pairs, which {self._name} orders"
                )
            self._heads = {"attn_q": self.shape.heads, "attn_k": self.shape.kv_heads}

    def tokenizer_files(self) -> dict[str, str]:
        """The content of tokenizer.json and what lies beside it, by name."""
        return GgufTokenizer(self._file).files(self.shape.vocab_size)

    def types(self) -> Counter[str]:
        """How many tensors there are of each type."""
        return Counter(tensor.kind.name for tensor in self._file.tensors.values())

    def __contains__(self, name: str) -> bool:
        return self._place(name)[0] in self._file.tensors

    def read(self, name: str, shape: tuple[int, ...] | None = None) -> Floats:
        """See CheckpointTensors."""
        stored, part = self._checked(name, shape)
        found: Floats = self._ordered(stored, self._file.floats(stored, part))
        if self._family.norm and stored.endswith("norm.weight"):
            found = found - np.float32(self._family.norm)
        return found if shape is None else found.reshape(shape)

    def blocks(self, name: str) -> Blocks | WideBlocks | None:
        """See CheckpointTensors."""
        stored, part = self._place(name)
        tensor = self._file.tensors.get(stored)
        if tensor is None or tensor.kind.name not in ("Q4_0", "Q8_0"):
            return None
        outputs, inputs = tensor.shape[-2:] if len(tensor.shape) > 1 else (1, tensor.shape[0])
        raw = self._file.raw(stored, part)
        levels: npt.NDArray[Any]
        if tensor.kind.name == "Q4_0":
            whole, scales = q4_0_levels(raw)
            levels = pack(whole)
        else:
            levels, scales = q8_0_levels(raw)
        return (
            self._ordered(stored, levels.reshape(outputs, inputs // BLOCK, -1)),
            self._ordered(stored, scales.astype(np.float32).reshape(outputs, inputs // BLOCK)),
        )

    def _checked(self, name: str, shape: tuple[int, ...] | None) -> tuple[str, int | None]:
        stored, part = self._place(name)
        if stored not in self._file.tensors:
            raise InvalidArgumentError(f"{self._file.path}: has no tensor {stored!r}")
        found = self._file.tensors[stored].shape
        if part is not None:
            if len(found) < 2 or part >= found[0]:
                raise InvalidArgumentError(f"{self._file.path}: tensor {stored!r} has no expert {part}")
            found = found[1:]
        found = (1, *found) if shape is not None and len(shape) == 2 and shape[0] == 1 and len(found) == 1 else found
        if shape is not None and found != shape:
            raise InvalidArgumentError(
                f"{self._file.path}: tensor {stored!r} has the shape {list(found)}; its keys make it {list(shape)}"
            )
        return stored, part

    def _place(self, name: str) -> tuple[str, int | None]:
        """What the file calls a tensor, and the number of the expert whose part of it is meant."""
        if name in _WHOLE:
            return _WHOLE[name], None
        found = _IN_LAYER.fullmatch(name)
        if found is None:
            return name, None
        number, _, expert, role, ending = found.groups()
        stored = self._family.roles.get(role) or _LAYER.get(role) if expert is None else _EXPERT.get(role)
        return f"blk.{number}.{stored or role}.{ending}", None if expert is None else int(expert)

    def _ordered(self, stored: str, rows: Any) -> Any:
        """Rows of queries and keys as Hugging Face has them: the columns that turn together lie half a head apart."""
        heads = self._heads.get(stored.split(".")[2] if stored.startswith("blk.") else "")
        if heads is None:
            return rows
        return rows.reshape(heads, -1, 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)

    def _config(self, family: _Family) -> dict[str, Any]:
        """What config.json would be."""
        table = self._file.tensors.get("token_embd.weight")
        if table is None or len(table.shape) != 2:
            raise InvalidArgumentError(f"{self._file.path}: has no matrix 'token_embd.weight'")
        hidden, heads = self._own("embedding_length"), self._own("attention.head_count", 1 << 16)
        size = self._own("attention.key_length", 1 << 16, max(1, hidden // heads))
        if self._own("attention.value_length", 1 << 16, size) != size:
            raise UnsupportedFeatureError(f"{self._file.path}: values that have another size than keys")
        length = self._own("context_length")
        window = self._own("attention.sliding_window", _MOST, 0)
        if 0 < window < length and not family.window:
            raise UnsupportedFeatureError(f"{self._file.path}: a window in the architecture {self._name}")
        last = table.shape[0] - 1
        end = [self._token(f"{name}_token_id", last) for name in ("eos", "eot", "eom")]
        turning = self._own("rope.dimension_count", size, size)
        return {
            "model_type": family.kind,
            "vocab_size": table.shape[0],
            "hidden_size": hidden,
            "num_hidden_layers": self._own("block_count", 4096),
            "num_attention_heads": heads,
            "num_key_value_heads": self._own("attention.head_count_kv", 1 << 16, heads),
            "head_dim": size,
            "intermediate_size": self._own("feed_forward_length"),
            "max_position_embeddings": length,
            "rms_norm_eps": self._real("attention.layer_norm_rms_epsilon"),
            "rope_parameters": self._rope(length, turning),
            "partial_rotary_factor": turning / size,
            "tie_word_embeddings": "output.weight" not in self._file.tensors,
            "bos_token_id": self._token("bos_token_id", last),
            "eos_token_id": sorted({token for token in end if token is not None}),
            "pad_token_id": self._token("padding_token_id", last),
            **self._experts(family),
            **self._others(family, hidden // heads, size),
            "sliding_window": window,
        }

    def _others(self, family: _Family, part: int, size: int) -> dict[str, Any]:
        """What only some families have. ``part``: the hidden size by the heads, which often is that of a head, too."""
        caps = [f"{name}_logit_softcapping" for name in ("attn", "final")]
        found = {name: self._real(name) for name in caps if f"{self._name}.{name}" in self._file.values}
        if family.kind == "gemma3_text":
            scalar = part if self._own("block_count", 4096) == _GEMMA_27B else size
            local = self._real("rope.freq_base_swa", 10000.0)
            return {**found, "query_pre_attn_scalar": scalar, "rope_local_base_freq": local}
        if family.kind == "granite":
            if self._file.values.get(f"{self._name}.rope.scaling.finetuned") is False:
                raise UnsupportedFeatureError(f"{self._file.path}: granite without a rotary embedding")
            found["attention_multiplier"] = self._real("attention.scale", size**-0.5)
            found["logits_scaling"] = self._real("logit_scale", 1.0)
            found |= {f"{name}_multiplier": self._real(f"{name}_scale", 1.0) for name in ("embedding", "residual")}
        return found

    def _experts(self, family: _Family) -> dict[str, Any]:
        count = self._own("expert_count", 1 << 16, 0)
        if not count:
            return {}
        inner = self._own("expert_feed_forward_length", default=self._own("feed_forward_length"))
        found = {"num_experts": count, "num_experts_per_tok": self._own("expert_used_count", count)}
        if family.kind == "llama":
            return {**found, "model_type": _MIXTRAL, "num_local_experts": count}
        shared = self._own("expert_shared_feed_forward_length", default=inner)
        return {
            **found,
            "moe_intermediate_size": inner,
            "shared_expert_intermediate_size": shared,
            "norm_topk_prob": family.kind == "qwen3_moe",
        }

    def _rope(self, length: int, turning: int) -> dict[str, Any]:
        rope: dict[str, Any] = {"rope_theta": self._real("rope.freq_base", 10000.0)}
        scaling = self._text(f"{self._name}.rope.scaling.type", "none")
        original = self._own("rope.scaling.original_context_length", default=length)
        if _FACTORS in self._file.tensors:  # those of Llama 3, one for each plane
            factors = self._factors(_FACTORS, turning)
            listed = {"short_factor": factors, "long_factor": factors}
            return {**rope, **listed, "rope_type": "longrope", "attention_factor": 1.0, "factor": 1.0}
        if _LONG in self._file.tensors or _SHORT in self._file.tensors:
            listed = {f"{name}_factor": self._factors(f"rope_factors_{name}.weight", turning) for name in _LENGTHS}
            factor = self._real("rope.scaling.attn_factor", 1.0)
            rope |= {"rope_type": "longrope", "factor": length / original, "attention_factor": factor}
            return {**rope, **listed, "original_max_position_embeddings": original}
        if scaling == "none":
            return rope
        if scaling not in ("linear", "yarn"):
            raise UnsupportedFeatureError(f"{self._file.path}: the rope scaling {scaling[:60]!r}")
        rope |= {"rope_type": scaling, "factor": self._real("rope.scaling.factor")}
        if scaling == "yarn":
            rope["original_max_position_embeddings"] = original
        return rope

    def _factors(self, name: str, turning: int) -> list[float]:
        """One for each plane."""
        tensor = self._file.tensors.get(name)
        if tensor is None or math.prod(tensor.shape) != turning // 2:
            raise InvalidArgumentError(f"{self._file.path}: tensor {name!r} must have {turning // 2} numbers")
        found: list[float] = self._file.floats(name).reshape(-1).tolist()
        return found

    def _token(self, name: str, last: int) -> int | None:
        found = self._integer(f"tokenizer.ggml.{name}", 0, last, -1)
        return None if found < 0 else found

    def _own(self, name: str, most: int = 1 << 24, default: int | None = None) -> int:
        """A number of this architecture."""
        low = 1 if default is None else min(1, default)
        return self._integer(f"{self._name}.{name}", low, most, default)

    def _integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self._file.values.get(key, default)
        if type(value) is not int or (not low <= value <= high and key in self._file.values):
            raise self._wrong(key, f"a whole number from {low} to {high}", value)
        return value

    def _real(self, name: str, default: float | None = None) -> float:
        key = f"{self._name}.{name}"
        value = self._file.values.get(key, default)
        if type(value) is not float or not math.isfinite(value) or not 0 < value < _LARGEST:
            raise self._wrong(key, "a number > 0", value)
        return float(str(np.float32(value)))  # 0.00001, and not what is nearest to it in 32 bits

    def _text(self, key: str, default: str | None = None) -> str:
        value = self._file.values.get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, "a text", value)
        return value

    def _wrong(self, key: str, expected: str, found: object) -> InvalidArgumentError:
        what = "is missing" if key not in self._file.values else f"must be {expected}, not {shown(found)}"
        return InvalidArgumentError(f"{self._file.path}: the key '{key}' {what}")
