"""What the parameters of an agent entry ask for: the agent's own, and those of a converter."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from repoagent.api import AgentModel, InvalidArgumentError, Parameters, UnsafePathError

__all__ = ["CHECKPOINT", "PARAMETERS", "Options", "check_file_name", "parse_parameters"]

PARAMETERS: Final[Mapping[str, str]] = {
    "to": "the format to convert to: optimized, int8, tensorrt, decoder, or that of a plug-in",
    "from": "the format of the model, where more than one can be converted to that",
    "input": "name of the model file in each version directory",
    "keep_original": "true: the model file stays, and the result lies beside it",
}
"""Every parameter of the agent itself, with what it is for."""

_BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
_DEFAULT_TARGET: Final = "optimized"
_DEFAULT_SOURCE: Final = "onnx"
CHECKPOINT: Final = "safetensors"


@dataclass(frozen=True, slots=True)
class Options:
    """What is converted to what. ``input`` is None where the parameter was not given; ``rest`` is the converter's."""

    source_format: str
    target_format: str
    input: str | None = None
    keep_original: bool = False
    rest: Mapping[str, str] = field(default_factory=dict)


def parse_parameters(given: Mapping[str, str], model: AgentModel) -> Options:
    """Read the parameters; of repeats the last counts.

    Raises:
        InvalidArgumentError: an unknown parameter, a value that it does not take, or no such converter.
        UnsafePathError: ``input`` does not name a file in the version directory.
    """
    target = given.get("to", _DEFAULT_TARGET)
    source = given.get("from") or _source_of(target, model.converters)
    converter = model.converter(source, target)
    Parameters(given.items()).check([*PARAMETERS, *converter.options])
    keep = given.get("keep_original", "false").lower()
    if keep not in _BOOLEANS:
        expected = ", ".join(_BOOLEANS)
        raise InvalidArgumentError(
            f"parameter 'keep_original': '{keep}' is not a truth value; expected one of: {expected}"
        )
    name = given.get("input")
    if name is not None:
        check_file_name(name, "parameter 'input'")
    rest = {key: value for key, value in given.items() if key not in PARAMETERS}
    return Options(source, target, name, _BOOLEANS[keep], rest)


def _source_of(target: str, converters: Collection[tuple[str, str]]) -> str:
    """ONNX, or else the only format that can be converted to ``target``."""
    sources = [source for source, other in converters if other == target]
    return sources[0] if len(sources) == 1 else _DEFAULT_SOURCE


def check_file_name(name: str, source: str) -> None:
    """Make sure that ``name`` is a file name, without any directory; "." is the version directory itself.

    Raises:
        UnsafePathError: it is not; the message states that it came from ``source``.
    """
    if name in ("", "..") or "/" in name or "\0" in name:
        raise UnsafePathError(f"{source}: {name!r} is not a plain file name")
