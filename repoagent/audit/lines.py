"""One line: an event as canonical JSON, and the hash that ties it to the line before. And whether a chain is sound."""

import hashlib
import hmac
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from repoagent.nested_text import read_json
from repoagent.public_text import writable

VERSION: Final = 1
LONGEST_LINE: Final = 1 << 18
"""Bytes of a line; what is recorded is cut to fit."""

_ENOUGH: Final = LONGEST_LINE + 2
_LONGEST_TEXT: Final = 2048
_MOST_MEMBERS: Final = 200
_DEEPEST: Final = 8
_LARGEST: Final = 1 << 53
_START: Final = b'{"event":"'
"""What every line begins with: its members are sorted."""
_HASH: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Head:
    """The last line of a chain: its number, from 1, and the SHA-256 of its bytes, its line feed included."""

    seq: int
    hash: str

    def __str__(self) -> str:
        return f"{self.seq} {self.hash}"


BEGINNING: Final = Head(0, "0" * 64)
"""What the first line of a chain follows."""


class LineError(ValueError):
    """Some bytes are not a line of an audit log; the text states why."""


def make_line(fields: Mapping[str, Any], before: Head, moment: float, key: bytes | None = None) -> bytes:
    """The line after ``before``, with its line feed. With ``key`` it carries an HMAC of the rest of itself."""
    stamp = datetime.fromtimestamp(moment, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")
    document = {"v": VERSION, "seq": before.seq + 1, "prev": before.hash, "time": stamp, **fields}
    if len(canonical(document)) > LONGEST_LINE - 256:
        document["what"] = {"cut": "the details are too long for one line"}
    if key is not None:
        document["mac"] = _mac(document, key)
    return canonical(document) + b"\n"


def read_line(line: bytes, key: bytes | None = None) -> dict[str, Any]:
    """The fields of a line without its line feed. Raises ``LineError`` if :func:`make_line` does not write such a line,
    or its HMAC is not made with ``key``."""
    try:
        document = read_json(line, deepest=2 * _DEEPEST)
        written = canonical(document)
    except ValueError:
        raise LineError("it is not valid JSON") from None
    if not isinstance(document, dict) or written != line:
        raise LineError("it is not in canonical form")
    if document.get("v") != VERSION:
        raise LineError(f"its version is not {VERSION}")
    seq, prev = document.get("seq"), document.get("prev")
    if type(seq) is not int or not 1 <= seq < _LARGEST or not isinstance(prev, str) or not _HASH.fullmatch(prev):
        raise LineError("it lacks a sequence number or the hash of the line before")
    if key is not None:
        _check_mac(document, key)
    return document


def may_begin_line(torn: bytes) -> bool:
    """Whether ``torn`` may be the beginning of a line: zeros are what a power cut makes of bytes on some disks."""
    return _START.startswith(torn[: len(_START)]) or not torn.strip(b"\0")


def _check_mac(document: Mapping[str, Any], key: bytes) -> None:
    given = document.get("mac")
    if not isinstance(given, str) or not _HASH.fullmatch(given):
        raise LineError("it has no HMAC")
    rest = {name: value for name, value in document.items() if name != "mac"}
    if not hmac.compare_digest(given.encode(), _mac(rest, key).encode()):
        raise LineError("its HMAC was not made with this key, or the line was changed")


def _mac(document: Mapping[str, Any], key: bytes) -> str:
    return hmac.new(key, canonical(document), hashlib.sha256).hexdigest()


def digest(line: bytes) -> str:
    """The hash of a line with its line feed."""
    return hashlib.sha256(line).hexdigest()


def canonical(document: object) -> bytes:
    """JSON with sorted keys, no spaces and ASCII alone: what ``jq -cSa`` writes."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def plain(value: Any, depth: int = _DEEPEST) -> Any:
    """``value`` with what a line can hold: valid text, whole numbers, and little enough of both."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and abs(value) < _LARGEST:
        return int(value)
    if isinstance(value, Mapping | list | tuple) and depth:
        return _members(value, depth - 1)
    return _text(value)


def _members(value: Any, depth: int) -> Any:
    left = len(value) - _MOST_MEMBERS
    if isinstance(value, Mapping):
        pairs = list(value.items())[:_MOST_MEMBERS]
        more = {"...": f"{left} more"} if left > 0 else {}
        return {_text(name): plain(inner, depth) for name, inner in pairs} | more
    return [plain(inner, depth) for inner in value[:_MOST_MEMBERS]] + ([f"... {left} more"] if left > 0 else [])


def _text(value: object) -> str:
    text = str(value)
    if len(text) > _LONGEST_TEXT:
        text = f"{text[:_LONGEST_TEXT]}... ({len(text)} characters)"
    # Names of files may hold bytes that are not text: half of a pair that no reader of JSON takes.
    return writable(text).replace("\x7f", "\\x7f")


@dataclass(frozen=True, slots=True)
class Tail:
    """``head`` is that of the last whole line, None if there is none; ``size`` where that line ends."""

    head: Head | None
    size: int
    torn: bytes
    """What follows: the beginning of a line whose write was cut short."""


def read_tail(fd: int) -> Tail:
    """Read the end of the file ``fd``; raises ``LineError`` if it does not end like an audit log."""
    size = os.fstat(fd).st_size
    start = max(0, size - 2 * (LONGEST_LINE + 1))
    data = os.pread(fd, size - start, start)
    whole, newline, torn = data.rpartition(b"\n")
    if len(torn) > LONGEST_LINE:
        raise LineError("its last line is too long for an audit log")
    if not newline:
        if not may_begin_line(torn):
            raise LineError("it has no line, and what it has is not the beginning of one")
        return Tail(None, 0, torn)
    line = whole.rpartition(b"\n")[2]
    fields = read_line(line)
    return Tail(Head(fields["seq"], digest(line + b"\n")), size - len(torn), torn)


def first_number(fd: int) -> int:
    """The sequence number of the first line of the file ``fd``; 0 if it has none."""
    line, newline, _ = os.pread(fd, LONGEST_LINE + 1, 0).partition(b"\n")
    if not newline:
        return 0
    try:
        number: int = read_line(line)["seq"]
    except LineError:
        return 0
    return number


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
