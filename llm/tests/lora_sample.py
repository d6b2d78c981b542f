"""Random LoRA adapters in the forms that the tests need: a request's, PEFT's folder, merged into the weights."""

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from repoagent_llm import LoraConfig
from repoagent_llm.builder.safetensors import write_safetensors

from llm.tests.reference import Array, Reference

Floats = npt.NDArray[np.float32]

# TensorRT-LLM's module numbers, and what checkpoints call these layers.
_LLAMA: Final = {
    1: "self_attn.q_proj",
    2: "self_attn.k_proj",
    3: "self_attn.v_proj",
    4: "self_attn.o_proj",
    5: "mlp.gate_proj",
    6: "mlp.down_proj",
    7: "mlp.up_proj",
}
_GPT2: Final = {0: "attn.c_attn", 4: "attn.c_proj", 5: "mlp.c_fc", 6: "mlp.c_proj"}


class SampleAdapter:
    """Changes ``modules`` (default: all) of every layer of a model; module m gets the rank ``rank + m % 3``."""

    def __init__(self, model: Reference, seed: int, *, rank: int = 3, modules: tuple[int, ...] | None = None) -> None:
        self._gpt2 = model.config["model_type"] == "gpt2"
        self._names = _GPT2 if self._gpt2 else _LLAMA
        self._model = model
        self.matrices: dict[tuple[int, int], tuple[Floats, Floats]] = {}
        source = np.random.default_rng(seed)
        for layer in range(model.config["n_layer" if self._gpt2 else "num_hidden_layers"]):
            for module in modules or tuple(self._names):
                weight = model.tensors[self._tensor(layer, module)]
                outputs, inputs = weight.shape[::-1] if self._gpt2 else weight.shape
                size = rank + module % 3
                a = source.standard_normal((size, inputs), np.float32) * np.float32(0.2)
                b = source.standard_normal((outputs, size), np.float32) * np.float32(0.2)
                self.matrices[layer, module] = (a, b)

    def _tensor(self, layer: int, module: int) -> str:
        stem = f"transformer.h.{layer}." if self._gpt2 else f"model.layers.{layer}."
        return f"{stem}{self._names[module]}.weight"

    def config(self, task_id: int) -> LoraConfig:
        """What a request carries."""
        rows = [np.concatenate([a.ravel(), b.ravel()]) for a, b in self.matrices.values()]
        weights = np.zeros((len(rows), max(map(len, rows))), np.float32)
        for row, values in zip(weights, rows, strict=True):
            row[: len(values)] = values
        keys = [(module, layer, len(a)) for (layer, module), (a, _) in self.matrices.items()]
        return LoraConfig(task_id, weights, np.array(keys, np.int32))

    def merged(self) -> dict[str, Array]:
        """The model's weights with the adapter in them: W + B A."""
        found = {}
        for (layer, module), (a, b) in self.matrices.items():
            change = b.astype(np.float64) @ a
            name = self._tensor(layer, module)
            found[name] = self._model.tensors[name] + (change.T if self._gpt2 else change)
        return found

    def save_peft(self, folder: Path, *, alpha: float, **settings: Any) -> Path:
        """A folder as PEFT's ``save_pretrained`` leaves it, with "out" matrices that ``alpha / rank`` scales back."""
        tensors = {}
        for (layer, module), (a, b) in self.matrices.items():
            stem = "base_model.model." + self._tensor(layer, module).removesuffix(".weight")
            scale = alpha / (np.sqrt(len(a)) if settings.get("use_rslora") else len(a))
            tensors[f"{stem}.lora_A.weight"], tensors[f"{stem}.lora_B.weight"] = a, (b / scale).astype(np.float32)
        config = {"peft_type": "LORA", "r": 3, "lora_alpha": alpha, "bias": "none", "target_modules": [], **settings}
        folder.mkdir()
        (folder / "adapter_config.json").write_text(json.dumps(config))
        write_safetensors(folder / "adapter_model.safetensors", tensors)
        return folder
