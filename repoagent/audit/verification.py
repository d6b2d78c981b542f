"""Checking the lines of an audit log, of one file or of several that follow each other."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from repoagent.audit.lines import BEGINNING, LONGEST_LINE, Head, LineError, digest, first_number, read_line

_ENOUGH: Final = LONGEST_LINE + 2


class BrokenChain(Exception):
    """The first line that is not what was written, or not where it was written."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}")


@dataclass(slots=True)
class Verdict:
    """What a sound chain holds."""

    first: int = 0
    """The number of its first line; more than 1 if what came before was not given. 0 if there are no lines."""
    head: Head = BEGINNING
    torn: dict[Path, int] = field(default_factory=dict)
    """Files that end with the beginning of a line, and how many bytes of it: a write that was cut short."""
    heads_found: dict[str, int] = field(default_factory=dict)
    """The heads that were asked for, and the lines that have them."""


@dataclass(frozen=True, slots=True)
class _Line:
    path: Path
    number: int
    """Of the line in its file, from 1."""
    text: bytes

    def broken(self, reason: str) -> BrokenChain:
        return BrokenChain(self.path, self.number, reason)


def verify(paths: Sequence[Path], heads: Collection[str] = (), key: bytes | None = None) -> Verdict:
    """Check the chain in ``paths``, given in any order; with ``key`` also the HMAC of every line. Raises
    ``BrokenChain`` if a line was changed, removed, added or moved."""
    verdict = Verdict()
    ordered = sorted(paths, key=_first_number)
    before: _Line | None = None
    for line in _lines(ordered, verdict):
        seq = _check(line, before, verdict, key, ordered)
        verdict.first = verdict.first or seq
        verdict.head = Head(seq, digest(line.text + b"\n"))
        if verdict.head.hash in heads:
            verdict.heads_found[verdict.head.hash] = seq
        before = line
    return verdict


def _check(line: _Line, before: _Line | None, verdict: Verdict, key: bytes | None, paths: Sequence[Path]) -> int:
    """The number of a line that is sound and follows ``before``."""
    try:
        fields = read_line(line.text, key)
    except LineError as error:
        raise line.broken(f"it is not a line of an audit log: {error}") from None
    seq: int = fields["seq"]
    if before is None:
        if seq == 1 and fields["prev"] != BEGINNING.hash:
            raise line.broken("it has the number 1, and names a line before it")
        return seq
    if seq != verdict.head.seq + 1:
        raise line.broken(_misplaced(seq, verdict.head.seq + 1))
    if fields["prev"] != verdict.head.hash:
        raise _changed(line, before, paths)
    return seq


def _misplaced(seq: int, expected: int) -> str:
    if seq > expected:
        return f"it has the number {seq}, and {expected} should come here: lines were removed or moved"
    return f"it has the number {seq}, and {expected} should come here: it was moved or repeated"


def _changed(line: _Line, before: _Line, paths: Sequence[Path]) -> BrokenChain:
    """Which of two lines that do not fit was changed: the line after them knows the second one."""
    after = _next(line, paths)
    if after is None:
        return before.broken("it was changed, or the last line after it was: that has the hash of another line")
    try:
        intact = read_line(after.text)["prev"] == digest(line.text + b"\n")
    except LineError:
        intact = False
    if intact:
        return before.broken("it was changed after the next line was written")
    return line.broken("it was changed: it has not the hash of the line before, nor has the next line its hash")


def _next(line: _Line, paths: Sequence[Path]) -> _Line | None:
    found = False
    for other in _lines(paths, Verdict()):
        if found:
            return other
        found = (other.path, other.number) == (line.path, line.number)
    return None


def _lines(paths: Sequence[Path], verdict: Verdict) -> Iterator[_Line]:
    for path in paths:
        with path.open("rb") as file:
            number = 0
            while text := file.readline(_ENOUGH):
                number += 1
                if text.endswith(b"\n"):
                    yield _Line(path, number, text[:-1])
                elif len(text) == _ENOUGH:
                    raise BrokenChain(path, number, "it is too long for a line of an audit log")
                else:
                    verdict.torn[path] = len(text)


def _first_number(path: Path) -> int:
    """The number of the first line of a file, by which files are put in order; 0 if it cannot be read."""
    with path.open("rb") as file:
        return first_number(file.fileno())
