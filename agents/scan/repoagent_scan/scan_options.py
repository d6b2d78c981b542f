"""The parameters of the agent, checked."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from repoagent.api import InvalidArgumentError, Parameters
from repoagent_scan.formats.format import ACCEPTED, Format

PARAMETERS: Final = ("allow", "allow_file", "allow_operator", "modelaudit", "timeout")
_ONCE: Final = ("modelaudit", "timeout")
_REFUSED: Final = tuple(sorted(format_.value for format_ in Format if format_ not in ACCEPTED))


class Audit(StrEnum):
    """Whether modelaudit looks at the model as well."""

    AUTO = "auto"
    """If it is installed."""
    REQUIRED = "required"
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Options:
    """What the agent lets pass, and whether modelaudit looks too."""

    formats: frozenset[Format] = ACCEPTED
    files: tuple[str, ...] = ()
    """Patterns of paths that are not looked at."""
    operators: frozenset[str] = frozenset()
    """Domains of ONNX operators, or single operators as ``domain::type``."""
    audit: Audit = Audit.AUTO
    timeout: float = 600.0
    """Seconds that modelaudit may take."""


def parse_parameters(parameters: Parameters) -> Options:
    """The options in ``parameters``.

    Raises:
        InvalidArgumentError: a parameter is unknown, is given twice, or has a value that is not allowed.
    """
    parameters.check(PARAMETERS, once=_ONCE)
    return Options(
        formats=ACCEPTED | {_format(value) for value in parameters.get_all("allow")},
        files=tuple(parameters.get_all("allow_file")),
        operators=frozenset(parameters.get_all("allow_operator")),
        audit=_audit(parameters.get("modelaudit") or Audit.AUTO),
        timeout=_seconds(parameters.get("timeout") or "600"),
    )


def _format(value: str) -> Format:
    if value not in _REFUSED:
        raise InvalidArgumentError(f"parameter 'allow' is {value!r}, expected one of {', '.join(_REFUSED)}")
    return Format(value)


def _audit(value: str) -> Audit:
    try:
        return Audit(value)
    except ValueError:
        known = ", ".join(Audit)
        raise InvalidArgumentError(f"parameter 'modelaudit' is {value!r}, expected one of {known}") from None


def _seconds(value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 86_400:
        raise InvalidArgumentError(f"parameter 'timeout' is {value!r}, expected seconds between 0 and 86400")
    return seconds
