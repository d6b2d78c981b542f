"""What a scan found, and how a refusal words it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Finding", "describe"]

_SHOWN: Final = 5
_LONGEST: Final = 500
"""Characters of a path or a reason: both may come from the model's owner."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason not to load the model."""

    path: str
    reason: str
    remedy: str = ""
    """The parameter that accepts it, if there is one."""

    def __post_init__(self) -> None:
        for name in ("path", "reason", "remedy"):
            object.__setattr__(self, name, _printable(getattr(self, name)))

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


def describe(findings: Sequence[Finding]) -> str:
    """The first few of ``findings``, how many more there are, and what would accept them."""
    lines = [str(finding) for finding in findings[:_SHOWN]]
    if len(findings) > _SHOWN:
        lines.append(f"and {len(findings) - _SHOWN} more")
    remedies = sorted({finding.remedy for finding in findings if finding.remedy})
    hint = f" (the operator accepts this with {', '.join(remedies[:_SHOWN])})" if remedies else ""
    return "; ".join(lines) + hint


def _printable(text: str) -> str:
    """``text`` for logs and terminals: what would move a cursor or begin a line is escaped, and the end cut off."""
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in shown)
