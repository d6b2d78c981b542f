"""What a scan found, and how a refusal words it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

__all__ = ["Finding", "describe"]

_SHOWN: Final = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One reason not to load the model."""

    path: str
    reason: str
    remedy: str = ""
    """The parameter that accepts it, if there is one."""

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
