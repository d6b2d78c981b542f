"""Tables of the rotary position embedding."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from repoagent.errors import InvalidArgumentError
from repoagent_llm.builder.architecture import Architecture
from repoagent_llm.types.errors import UnsupportedFeatureError

__all__ = ["rope_tables"]


def rope_tables(shape: Architecture) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines [context length, head size / 2]."""
    exponents = np.arange(0, shape.head_size, 2, dtype=np.float64) / shape.head_size
    frequencies = _scaled(1.0 / shape.rope_theta**exponents, shape.rope_scaling)
    angles = np.outer(np.arange(shape.context_length, dtype=np.float64), frequencies)
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


def _number(scaling: Mapping[str, Any], name: str) -> float:
    value = scaling.get(name)
    if not isinstance(value, (int, float)) or not value > 0:
        raise InvalidArgumentError(f"config.json: rope scaling needs {name}, a number > 0, not {value!r}")
    return float(value)
