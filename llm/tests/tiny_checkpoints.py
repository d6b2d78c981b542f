"""Tiny checkpoints of every architecture, of random weights by the names of their tensors."""

import json
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from repoagent_llm.builder.safetensors import write_safetensors

TEXT: list[int] = np.random.default_rng(5).integers(3, 64, 120).tolist()


def read_shapes(path: Path) -> dict[str, list[int]]:
    """The shapes of the tensors of a safetensors file."""
    with path.open("rb") as file:
        (size,) = struct.unpack("<Q", file.read(8))
        head = json.loads(file.read(size))
    return {name: entry["shape"] for name, entry in sorted(head.items()) if name != "__metadata__"}


def tiny_values(name: str, shape: Sequence[int], config: Mapping[str, Any]) -> npt.NDArray[np.float32]:
    """A tensor by its name."""
    values = np.random.default_rng(zlib.crc32(name.encode())).standard_normal(shape).astype(np.float32)
    usual = 1 if "norm" in name and config["model_type"] != "gemma3_text" else 0
    return usual + values * np.float32(1 if name.endswith("sinks") else 0.15)


def tiny_checkpoint(folder: Path, entry: Mapping[str, Any]) -> Path:
    """Write config.json and model.safetensors of a variant that architectures.json describes."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(entry["config"]))
    tensors = {}
    for name, shape in entry["tensors"].items():
        tensors[name] = tiny_values(name, shape, entry["config"])
    write_safetensors(folder / "model.safetensors", tensors)
    return folder
