"""What can be wrong with a model's files, and how it is told in one message."""

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from repoagent_checksum.file_names import show

__all__ = ["Finding", "Kind", "describe"]

SHOWN: Final = 3
"""How many of a kind a message names."""


class Kind(enum.Enum):
    """What is wrong; in the order in which it is told."""

    MISMATCH = "differs from the parameter"
    CHANGED = "changed"
    MISSING = "missing"
    UNLISTED = "not listed"
    LINK = "a symbolic link"
    SPECIAL = "neither a file nor a directory"
    EMPTY = "an empty directory, which no manifest can list"
    INCOMPLETE = "incomplete"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing wrong with one path. ``detail`` says more, where there is more to say."""

    kind: Kind
    path: str
    detail: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.MISMATCH:
            return self.detail
        return f"{show(self.path)} ({self.detail})" if self.detail else show(self.path)


def describe(findings: Sequence[Finding]) -> str:
    """All findings in one line: of each kind the first few, and how many there are."""
    order = list(Kind)
    ranked = sorted(findings, key=lambda finding: order.index(finding.kind))
    return "; ".join(_describe_kind(kind, list(group)) for kind, group in groupby(ranked, lambda found: found.kind))


def _describe_kind(kind: Kind, findings: Sequence[Finding]) -> str:
    if kind is Kind.MISMATCH:
        return _first_few(findings, "; ")
    return f"{kind.value}: {_first_few(findings, ', ')}"


def _first_few(findings: Sequence[Finding], separator: str) -> str:
    texts: Iterable[str] = (str(finding) for finding in findings[:SHOWN])
    rest = len(findings) - SHOWN
    return separator.join(texts) + (f"{separator}and {rest} more" if rest > 0 else "")
