"""Adapters as Hugging Face's PEFT saves them: adapter_config.json and adapter_model.safetensors."""

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.errors import ConfigError, InvalidArgumentError
from repoagent.nested_text import read_json
from repoagent_llm.builder.safetensors import Checkpoint
from repoagent_llm.lora.modules import LoraModule
from repoagent_llm.types.adapters import LoraConfig
from repoagent_llm.types.executor_errors import UnsupportedFeatureError

PEFT_CONFIG: Final = "adapter_config.json"

_KEY: Final = re.compile(
    r"(?P<module>(?>(?:.*\.)?(?:layers|h)\.(?P<layer>\d++)\.)(?P<path>[\w.]+))\.lora_(?P<part>A|B)\.weight"
)
_PLAIN: Final = re.compile(r"(?:\.\*)?(?:[\w.^$|-]|\\d\+\\\.|\\[.d]|\[(?:0-9|\w)++\])*+")
"""A pattern of modules without groups and repeats, by which an adapter's author could make us run for years."""
_LONGEST: Final = 256
"""Characters of a pattern and of a module's name."""
_MODULES: Final = {
    "self_attn.q_proj": LoraModule.ATTN_Q,
    "self_attn.k_proj": LoraModule.ATTN_K,
    "self_attn.v_proj": LoraModule.ATTN_V,
    "self_attn.o_proj": LoraModule.ATTN_DENSE,
    "mlp.gate_proj": LoraModule.MLP_H_TO_4H,
    "mlp.up_proj": LoraModule.MLP_GATE,
    "mlp.down_proj": LoraModule.MLP_4H_TO_H,
    "attn.c_attn": LoraModule.ATTN_QKV,
    "attn.c_proj": LoraModule.ATTN_DENSE,
    "mlp.c_fc": LoraModule.MLP_H_TO_4H,
    "mlp.c_proj": LoraModule.MLP_4H_TO_H,
}
_OTHER_KINDS: Final = {
    "use_dora": False,
    "bias": "none",
    "lora_bias": False,
    "modules_to_save": None,
    "layer_replication": None,
    "use_qalora": False,
    "target_parameters": None,
    "alora_invocation_tokens": None,
    "arrow_config": None,
    "kasa_config": None,
    "monteclora_config": None,
    "use_bdlora": None,
    "trainable_token_indices": None,
}

_CHANGES_BASE: Final = ("pissa", "olora", "corda", "loftq", "lora_ga")


def read_peft(folder: str | Path, task_id: int) -> LoraConfig:
    """The adapter in ``folder`` as a request takes it; alpha / rank is multiplied into the "out" matrices.

    Raises ``ConfigError`` or ``InvalidArgumentError`` for a folder that is not an adapter, and
    ``UnsupportedFeatureError`` for an adapter that is more than LoRA on the linear layers of attention and MLP.
    """
    folder = Path(folder)
    settings = _settings(folder)
    if not (folder / "adapter_model.safetensors").is_file():
        raise InvalidArgumentError(
            f"{folder}: adapter_model.safetensors does not exist; PEFT writes it with save_pretrained(..., "
            "safe_serialization=True)"
        )
    tensors = Checkpoint(folder)
    modules = _modules(tensors, folder)
    rows, keys = [], []
    for (layer, path), (name, stem) in sorted(modules.items()):
        a, b = tensors.read(f"{stem}.lora_A.weight"), tensors.read(f"{stem}.lora_B.weight")
        scale = np.float32(_scale(settings, name, len(a)))
        rows.append(np.concatenate([a.ravel(), (b * scale).ravel()]))
        keys.append((_MODULES[path], layer, len(a)))
    return LoraConfig(task_id, _padded(rows), np.array(keys, np.int32))


def _settings(folder: Path) -> Mapping[str, Any]:
    path = folder / PEFT_CONFIG
    if not path.is_file():
        raise ConfigError("File does not exist", source=str(path))
    settings: dict[str, Any] = read_json(path.read_text(encoding="utf-8"))
    if settings.get("peft_type") != "LORA":
        raise UnsupportedFeatureError(f"{path}: peft_type {settings.get('peft_type')!r}", "only LORA is applied")
    for name, plain in _OTHER_KINDS.items():
        if settings.get(name, plain) not in (plain, None, [], {}):
            raise UnsupportedFeatureError(f"{path}: {name} = {settings[name]!r}", "only plain LoRA is applied")
    start = settings.get("init_lora_weights")
    if isinstance(start, str) and start.startswith(_CHANGES_BASE):
        raise UnsupportedFeatureError(
            f"{path}: init_lora_weights = {start!r}",
            "it changes the base weights; let PEFT convert the adapter (path_initial_model_for_weight_conversion)",
        )
    for pattern in settings.get("alpha_pattern") or {}:
        if len(pattern) > _LONGEST or not _PLAIN.fullmatch(pattern):
            raise UnsupportedFeatureError(
                f"{path}: the alpha_pattern {pattern[:_LONGEST]!r}",
                f"patterns have at most {_LONGEST} characters, and no groups or repeats but a first .* and \\d+\\.",
            )
    return settings


def _modules(tensors: Checkpoint, folder: Path) -> dict[tuple[int, str], tuple[str, str]]:
    """(layer, path in it) -> (the module's full name, what its tensors' names begin with)."""
    found = {}
    for name in tensors.names():
        match = _KEY.fullmatch(name)
        if len(name) > _LONGEST or match is None or match["path"] not in _MODULES:
            raise UnsupportedFeatureError(
                f"{folder}: the tensor {name[:_LONGEST]!r}", f"adapters change {', '.join(_MODULES)} of a layer"
            )
        module = match["module"].removeprefix("base_model.model.")
        found[int(match["layer"]), match["path"]] = (module, match["module"])
    return found


def _scale(settings: Mapping[str, Any], module: str, rank: int) -> float:
    """alpha / rank, or alpha / sqrt(rank) with rsLoRA; ``alpha_pattern`` has the alphas of some modules."""
    alpha = settings["lora_alpha"]
    for pattern, value in (settings.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            alpha = value
            break
    return float(alpha) / (math.sqrt(rank) if settings.get("use_rslora") else rank)


def _padded(rows: list[npt.NDArray[np.float32]]) -> npt.NDArray[np.float32]:
    weights = np.zeros((len(rows), max(map(len, rows), default=0)), np.float32)
    for row, values in zip(weights, rows, strict=True):
        row[: len(values)] = values
    return weights
