"""``generation_config.json``: what the model's author recommends for sampling, and the tokens at which texts end."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from repoagent.beneath import read_beneath
from repoagent.errors import ConfigError
from repoagent.limits import Limits
from repoagent.nested_text import read_json

__all__ = ["GenerationDefaults", "read_generation_defaults"]

_NAME: Final = "generation_config.json"
_REAL: Final = {
    "temperature": (0.0, math.inf),
    "top_p": (0.0, 1.0),
    "min_p": (0.0, 1.0),
    "repetition_penalty": (0.0, math.inf),
}
"""Names there and in a request, and the range of the value."""
_WHOLE: Final = {
    "top_k": "top_k",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
}
"""Names there, and those in a request."""
_DRAWS: Final = frozenset({"temperature", "top_k", "top_p", "min_p"})
"""What means nothing without sampling."""
_MOST_END_IDS: Final = 1024


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """Values by the names of requests; a request that sets one overrides it."""

    always: Mapping[str, Any] = field(default_factory=dict)
    """For requests that do not mention sampling."""
    sampled: Mapping[str, Any] = field(default_factory=dict)
    """For requests that are sampled, as those with ``sampling_parameters``."""
    end_ids: tuple[int, ...] | None = None
    """None leaves the decoder's own."""


def read_generation_defaults(folder: Path, limits: Limits) -> GenerationDefaults:
    """What ``folder`` has; nothing where there is no file.

    Raises:
        ConfigError: the file cannot be read, or a value makes no sense.
    """
    try:
        values = read_json(read_beneath(folder, _NAME, limit=limits.text_file_bytes))
    except FileNotFoundError:
        return GenerationDefaults()
    except (OSError, ValueError) as error:
        raise ConfigError(f"'{folder.name}/{_NAME}' cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"'{folder.name}/{_NAME}' must be a JSON object")
    where = f"'{folder.name}/{_NAME}'"
    found: dict[str, Any] = {}
    for name, (low, high) in _REAL.items():
        if (value := values.get(name)) is not None:
            found[name] = _real(where, name, value, low, high)
    for name, wanted in _WHOLE.items():
        if (value := values.get(name)) is not None:
            found[wanted] = _whole(where, name, value)
    found = {name: value for name, value in found.items() if value or name == "temperature"}  # 0 means not set
    quiet = {name: value for name, value in found.items() if name not in _DRAWS}
    draws = values.get("do_sample") is True
    return GenerationDefaults({"top_p": 1.0, **found} if draws else quiet, found, _end_ids(where, values))


def _real(where: str, name: str, value: object, low: float, high: float) -> float:
    if type(value) not in (int, float) or not low <= float(value) <= high:  # type: ignore[arg-type]
        raise ConfigError(f"{where}: {name} must be a number from {low:g} to {high:g}, not {str(value)[:60]}")
    return float(value)  # type: ignore[arg-type]


def _whole(where: str, name: str, value: object) -> int:
    if type(value) is not int or not -1 <= value < 1 << 31:
        raise ConfigError(f"{where}: {name} must be a whole number, not {str(value)[:60]}")
    return max(0, value)


def _end_ids(where: str, values: Mapping[str, Any]) -> tuple[int, ...] | None:
    given = values.get("eos_token_id")
    if given is None:
        return None
    ids = given if isinstance(given, list) else [given]
    if not ids or len(ids) > _MOST_END_IDS or any(type(item) is not int or item < 0 for item in ids):
        raise ConfigError(f"{where}: eos_token_id must be a token, or a list of at most {_MOST_END_IDS} of them")
    return tuple(dict.fromkeys(ids))
