"""Digest files, as ``sha256sum``, ``b2sum`` and ``b3sum`` write and read them: the GNU form and the tagged BSD form.

    d2c8...  1/model.onnx
    SHA256 (1/model.onnx) = d2c8...

In both a line starts with a backslash if its name has a backslash or a line end in it, which are then escaped.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from repoagent.api import InvalidArgumentError, UnsupportedError
from repoagent_checksum.file_names import plain_name, show


@dataclass(frozen=True, slots=True)
class Algorithm:
    """One digest algorithm. ``tag`` is its name in lines of the BSD form, ``sums`` the usual name of a digest file."""

    name: str
    tag: str
    hex_length: int
    sums: str
    weak: bool = False

    @property
    def key(self) -> str:
        """Its name for :func:`repoagent.api.digest_files`, and before a digest: ``sha256:...``."""
        return self.name.lower()


def _standard(name: str, hex_length: int, *, weak: bool = False) -> Algorithm:
    return Algorithm(name, name, hex_length, f"{name}SUMS", weak)


ALGORITHMS: Final = {
    algorithm.name: algorithm
    for algorithm in (
        _standard("MD5", 32, weak=True),
        _standard("SHA1", 40, weak=True),
        _standard("SHA224", 56),
        _standard("SHA256", 64),
        _standard("SHA384", 96),
        _standard("SHA512", 128),
        Algorithm("BLAKE2B", "BLAKE2b", 128, "B2SUMS"),
        Algorithm("BLAKE3", "BLAKE3", 64, "B3SUMS"),
    )
}

GIT_SHA1: Final = Algorithm("GIT-SHA1", "GIT-SHA1", 40, "", weak=True)
"""The name of a blob in Git. A Hugging Face listing gives it for files that are not in Git LFS."""


def find_algorithm(name: str, place: str = "") -> Algorithm:
    """The algorithm called ``name``, in any case, with or without a dash (``sha-256``).

    Args:
        name: As written.
        place: Where it was written, for the message.

    Raises:
        UnsupportedError: there is none.
    """
    found = ALGORITHMS.get(name.upper().replace("-", ""))
    if found is None:
        # First what Triton's agent states, word for word; it names no place.
        text = f"{place}{': ' if place else ''}Unsupported checksum algorithm: {name}"
        raise UnsupportedError(f"{text}; there are {', '.join(ALGORITHMS)}")
    return found


def algorithm_of_length(hex_length: int) -> Algorithm | None:
    """What a digest of that many hexadecimal digits is taken for where nothing else decides: MD5 or one of the SHAs."""
    for algorithm in ALGORITHMS.values():
        if algorithm.hex_length == hex_length:
            return algorithm
    return None


STANDARD_NAMES: Final = tuple(ALGORITHMS[name].sums for name in ("SHA256", "SHA512", "BLAKE2B", "BLAKE3"))
"""The digest files that are looked for when none is named: those of algorithms that no one can forge."""

_GNU: Final = re.compile(r"(\\?)([0-9A-Fa-f]{32,128}) [ *](.+)", re.DOTALL)
_BSD: Final = re.compile(r"(\\?)([A-Za-z0-9-]+) ?\((.+)\) ?= ?([0-9A-Fa-f]+)", re.DOTALL)
_ESCAPES: Final = {"\\\\": "\\", "\\n": "\n", "\\r": "\r"}
_BLAKE_NAME: Final = re.compile(r"(?:^|[._-])B(?:LAKE)?(2|3)B?(?:SUMS?)?(?:$|[._-])")


@dataclass(frozen=True, slots=True)
class Entry:
    """What one line states: the digest of ``path``, in lower case. ``size`` (bytes) is known from listings only."""

    path: str
    algorithm: Algorithm
    digest: str
    size: int | None = None


def parse_digest_file(data: bytes, source: str, default: Algorithm | None = None) -> list[Entry]:
    """Read a digest file.

    Args:
        data: Its content. Blank lines and lines that start with ``#`` do not count; ``CR LF`` ends a line too.
        source: Its name. It is in messages, and distinguishes BLAKE2 and BLAKE3 files (``B3SUMS``, ``x.b3``) from SHA
            ones, whose lines look the same.
        default: The algorithm of lines without a tag, instead of what ``source`` and the digest's length imply.

    Raises:
        InvalidArgumentError: a line that cannot be read, or two that contradict each other; with its number.
        UnsafePathError: a name that is absolute or has ``..`` in it.
        UnsupportedError: a tag that names an unknown algorithm.
    """
    default = default or _algorithm_of_file(source)
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    entries = []
    for number, line in enumerate(lines, start=1):
        text = line.removesuffix("\r")
        if text and not text.startswith("#"):
            entries.append(_parse_line(text, f"{source}:{number}", default))
    return merge_entries(entries, source)


def merge_entries(entries: Iterable[Entry], source: str) -> list[Entry]:
    """``entries`` without repeats.

    Raises:
        InvalidArgumentError: two give one file different digests of the same kind, or there is none at all.
    """
    merged: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        first = merged.setdefault((entry.path, entry.algorithm.name), entry)
        if first.digest != entry.digest:
            raise InvalidArgumentError(f"{source}: two different {entry.algorithm.name} digests for {show(entry.path)}")
    if not merged:
        raise InvalidArgumentError(f"{source}: no digest in it")
    return list(merged.values())


def _parse_line(line: str, place: str, default: Algorithm | None) -> Entry:
    if match := _BSD.fullmatch(line):
        escaped, tag, name, digest = match.groups()
        algorithm = find_algorithm(tag, place)
    elif match := _GNU.fullmatch(line):
        escaped, digest, name = match.groups()
        algorithm = default or _algorithm_of_digest(digest, place)
    else:
        raise InvalidArgumentError(
            f"{place}: expected 'digest  name' or 'ALGORITHM (name) = digest', got {line[:80]!r}"
        )
    if len(digest) != algorithm.hex_length:
        raise InvalidArgumentError(
            f"{place}: {len(digest)} hexadecimal digits; a {algorithm.name} digest has {algorithm.hex_length}"
        )
    return Entry(plain_name(_unescape(name, place) if escaped else name, place), algorithm, digest.lower())


def _algorithm_of_file(source: str) -> Algorithm | None:
    found = _BLAKE_NAME.search(source.rpartition("/")[2].upper())
    return ALGORITHMS["BLAKE2B" if found[1] == "2" else "BLAKE3"] if found else None


def _algorithm_of_digest(digest: str, place: str) -> Algorithm:
    algorithm = algorithm_of_length(len(digest))
    if algorithm is None:
        raise InvalidArgumentError(f"{place}: no known digest has {len(digest)} hexadecimal digits")
    return algorithm


def _unescape(name: str, place: str) -> str:
    def replace(match: re.Match[str]) -> str:
        if match[0] not in _ESCAPES:
            raise InvalidArgumentError(f"{place}: unknown escape {match[0]!r} in the name")
        return _ESCAPES[match[0]]

    return re.sub(r"\\.?", replace, name, flags=re.DOTALL)


def _escape(name: str) -> tuple[str, str]:
    """What to write at the start of the line, and for the name."""
    escaped = name.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
    return ("\\" if escaped != name else ""), escaped


def format_digest_file(digests: Mapping[str, str], algorithm: Algorithm, *, tagged: bool = False) -> bytes:
    """The digest file for ``digests`` (path -> hexadecimal digest), sorted by path, in the GNU or the BSD form."""
    lines = []
    for path in sorted(digests, key=lambda path: path.encode("utf-8", "surrogateescape")):
        mark, name = _escape(path)
        digest = digests[path]
        lines.append(f"{mark}{algorithm.tag} ({name}) = {digest}\n" if tagged else f"{mark}{digest}  {name}\n")
    return "".join(lines).encode("utf-8", "surrogateescape")
