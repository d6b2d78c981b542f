"""Rotary embeddings: by how much the planes of a head turn, for every scaling that a checkpoint may name."""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from repoagent.errors import InvalidArgumentError
from repoagent_llm.types.executor_errors import UnsupportedFeatureError, shown

Floats = npt.NDArray[np.float64]
_ORIGINAL: Final = "original_max_position_embeddings"
_LARGEST: Final = 1e15
_FASTEST: Final = 1e6
"""Radians for each token; it is one at most, unless a factor is below one."""


def rope_kind(rope: Mapping[str, Any]) -> str:
    """The name of a scaling; newer files call it ``rope_type``."""
    return str(rope.get("rope_type") or rope.get("type") or "default")


def rope_speeds(rope: Mapping[str, Any], size: int, length: int) -> tuple[Floats, float]:
    """The angles by which a token's planes turn against those of the one before it [size / 2], and a factor.

    Cosines and sines are multiplied by the factor. ``rope`` is ``rope_parameters`` of config.json. ``size``: how many
    columns of a head turn. ``length``: tokens of the longest text that is served, whatever a single text has.

    Raises:
        InvalidArgumentError: a number is missing or wrong, or they contradict one another.
        UnsupportedFeatureError: a scaling that is not known.
    """
    try:
        with np.errstate(all="ignore"):
            speeds, factor = _speeds(rope, size, length)
    except ArithmeticError:
        speeds, factor = np.full(1, np.nan), 1.0
    if not (np.abs(speeds) < _FASTEST).all() or not 0 < factor < _LARGEST:
        shown = ", ".join(f"{key} {value!r:.30}" for key, value in rope.items() if isinstance(value, (int, float)))
        raise InvalidArgumentError(f"config.json: rope scaling {rope_kind(rope)!r:.60} is impossible with {shown:.300}")
    return speeds, factor


def _speeds(rope: Mapping[str, Any], size: int, length: int) -> tuple[Floats, float]:
    kind, theta = rope_kind(rope), _number(rope, "rope_theta", 10000.0)
    exponents = np.arange(0, size, 2, dtype=np.float64) / size
    if kind == "dynamic":
        theta *= _stretch(rope, length) ** (size / (size - 2)) if size > 2 else 1.0
        return theta**-exponents, 1.0
    speeds = theta**-exponents
    if kind == "default":
        return speeds, 1.0
    if kind == "linear":
        return speeds / _number(rope, "factor"), 1.0
    if kind == "llama3":
        return _llama3(speeds, rope), 1.0
    if kind == "yarn":
        return _yarn(speeds, rope, size, theta)
    if kind == "longrope":
        return _longrope(speeds, rope, length)
    raise UnsupportedFeatureError(
        f"rope scaling {kind[:60]!r}", "known are default, linear, llama3, yarn, dynamic and longrope"
    )


def _number(rope: Mapping[str, Any], name: str, default: float | None = None) -> float:
    value = default if rope.get(name) is None else rope[name]
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 < value < _LARGEST:
        raise InvalidArgumentError(f"config.json: rope scaling needs {name}, a number > 0, not {shown(value)}")
    return float(value)


def _stretch(rope: Mapping[str, Any], length: int) -> float:
    original, factor = _number(rope, _ORIGINAL), _number(rope, "factor")
    return max(1.0, factor * max(length, original) / original - (factor - 1))


def _llama3(speeds: Floats, rope: Mapping[str, Any]) -> Floats:
    """Slow waves are stretched by ``factor``, fast ones kept, those between blended."""
    factor = _number(rope, "factor")
    low, high = _number(rope, "low_freq_factor"), _number(rope, "high_freq_factor")
    turns = _number(rope, _ORIGINAL) * speeds / (2 * math.pi)
    blend = np.clip((turns - low) / (high - low), 0.0, 1.0)
    return (1 - blend) * speeds / factor + blend * speeds


def _yarn(speeds: Floats, rope: Mapping[str, Any], size: int, theta: float) -> tuple[Floats, float]:
    """Planes that turn often within the original length are kept, the others stretched; attention is sharpened."""
    factor, original = _number(rope, "factor"), _number(rope, _ORIGINAL)

    def plane(turns: float) -> float:
        return size * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(theta))

    low, high = plane(_number(rope, "beta_fast", 32.0)), plane(_number(rope, "beta_slow", 1.0))
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, size - 1)
    width = high - low or 0.001
    stretched = np.clip((np.arange(size // 2) - low) / width, 0.0, 1.0)
    if rope.get("attention_factor") is not None:
        sharper = _number(rope, "attention_factor")
    elif rope.get("mscale") and rope.get("mscale_all_dim"):
        sharper = _sharper(factor, _number(rope, "mscale")) / _sharper(factor, _number(rope, "mscale_all_dim"))
    else:
        sharper = _sharper(factor, 1.0)
    return speeds / factor * stretched + speeds * (1 - stretched), sharper


def _sharper(factor: float, scale: float) -> float:
    return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(speeds: Floats, rope: Mapping[str, Any], length: int) -> tuple[Floats, float]:
    """A factor for each plane: one list up to the original length, another beyond it."""
    original = _number(rope, _ORIGINAL)
    name = "long_factor" if length > original else "short_factor"
    listed = rope.get(name)
    wrong = not isinstance(listed, list) or len(listed) != len(speeds)
    if wrong or any(type(item) not in (int, float) or not 0 < item < _LARGEST for item in listed or ()):
        raise InvalidArgumentError(f"config.json: rope scaling needs {name}, a list of {len(speeds)} numbers > 0")
    if rope.get("attention_factor") is not None:
        sharper = _number(rope, "attention_factor")
    else:
        factor = _number(rope, "factor")
        sharper = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return speeds / np.array(listed, np.float64), sharper
