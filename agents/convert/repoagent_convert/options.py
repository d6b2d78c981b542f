"""What the parameters of an agent entry ask for."""

import difflib
import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from repoagent.api import InvalidArgumentError, UnsafePathError

__all__ = ["PARAMETERS", "Level", "Options", "parse_parameters"]

PARAMETERS: Final[Mapping[str, str]] = {
    "level": "how far the graph is optimised: basic, extended or all",
    "input": "name of the model file in each version directory",
    "keep_original": "true: the model file stays, and the result lies beside it",
}
"""Every parameter, with what it is for."""

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}


class Level(enum.StrEnum):
    """ONNX Runtime's graph optimisation levels."""

    BASIC = "basic"
    """Folding of constants and removal of what is redundant. Standard ONNX comes out."""
    EXTENDED = "extended"
    """Also fusions into operators that only ONNX Runtime has."""
    ALL = "all"
    """Also memory layouts for this machine's processor: the result belongs to this kind of machine."""


@dataclass(frozen=True, slots=True)
class Options:
    """``input`` is None where the parameter was not given."""

    level: Level = Level.EXTENDED
    input: str | None = None
    keep_original: bool = False


def parse_parameters(given: Mapping[str, str]) -> Options:
    """Read the parameters; of repeats the last counts.

    Raises:
        InvalidArgumentError: an unknown parameter, or a value that it does not take.
        UnsafePathError: ``input`` is not a plain file name.
    """
    for key in given:
        _known(key, PARAMETERS, f"unknown parameter '{key}'")
    level = given.get("level", Level.EXTENDED.value).lower()
    _known(level, [level.value for level in Level], f"parameter 'level': unknown level '{level}'")
    keep = given.get("keep_original", "false").lower()
    _known(keep, _BOOLEANS, f"parameter 'keep_original': '{keep}' is no truth value")
    name = given.get("input")
    if name is not None:
        check_file_name(name, "parameter 'input'")
    return Options(Level(level), name, _BOOLEANS[keep])


def check_file_name(name: str, source: str) -> None:
    """Make sure that ``name`` is a file name, without any directory.

    Raises:
        UnsafePathError: it is not; the message says it came from ``source``.
    """
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise UnsafePathError(f"{source}: {name!r} is not a plain file name")


def _known(value: str, choices: Iterable[str], fault: str) -> None:
    choices = list(choices)
    if value in choices:
        return
    close = difflib.get_close_matches(value, choices, n=1)
    hint = f"did you mean '{close[0]}'?" if close else f"expected one of: {', '.join(choices)}"
    raise InvalidArgumentError(f"{fault}; {hint}")
