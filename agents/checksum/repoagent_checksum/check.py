"""The check itself: what was asked for, against what is there."""

import enum
import hashlib
import os
import stat
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Final

from repoagent.api import InvalidArgumentError, digest_files, walk_beneath
from repoagent_checksum.checksum_options import Expected, Request
from repoagent_checksum.digest_file import STANDARD_NAMES, Algorithm, Entry, format_digest_file
from repoagent_checksum.file_names import read_inside, show
from repoagent_checksum.json_listings import read_entries
from repoagent_checksum.safetensors import INDEX_SUFFIX, check_index

SHOWN: Final = 3
"""How many of a kind a message names."""


class Kind(enum.Enum):
    """What is wrong; in the order of the report."""

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
    """One thing wrong with one path. ``detail`` has more, where there is more."""

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


ALL_INDEXES: Final = "*"

Digests = Mapping[str, Mapping[str, str]]
"""Path -> key of an algorithm -> digest."""


@dataclass(frozen=True, slots=True)
class Observer:
    """``cancelled()`` and ``progress(done, total)`` are called between two buffers, never by two threads at once.

    ``digests`` computes what :func:`repoagent.api.digest_files` would, and does the other two itself.
    """

    cancelled: Callable[[], bool] = lambda: False
    progress: Callable[[int, int], None] = lambda _done, _total: None
    digests: Callable[[Mapping[str, Sequence[str]]], Mapping[str, Mapping[str, str]]] | None = None


@dataclass(frozen=True, slots=True)
class Tree:
    """Paths relative to the directory, with ``/``. ``files`` maps each regular file to its size in bytes."""

    files: dict[str, int] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Directories with nothing in them."""


def scan_tree(root: Path) -> Tree:
    """Look at everything below ``root``: files, and all that a digest file cannot cover. No link is followed.

    Raises:
        OSError: a directory cannot be read.
        UnsafePathError: directories are too deep in one another.
    """
    tree = Tree()
    empty: dict[str, None] = {}
    for path, mode, size in walk_beneath(root):
        empty.pop(path.rpartition("/")[0], None)
        if stat.S_ISDIR(mode):
            empty[path] = None
        elif stat.S_ISREG(mode):
            tree.files[path] = size
        else:
            (tree.links if stat.S_ISLNK(mode) else tree.special).append(path)
    tree.empty.extend(empty)
    return tree


def digests_of(root: Path, jobs: Mapping[str, Sequence[Algorithm]], observer: Observer | None = None) -> Digests:
    """The digests of the files in ``jobs``, relative to ``root``, each by its algorithms.

    Raises:
        InvalidArgumentError: a file cannot be opened or read.
        UnsafePathError: a file is reached through a link, or is not a regular file.
        UnsupportedError: an algorithm that is not installed.
        CancelledError: the observer reported it.
    """
    observer = observer or Observer()
    files = {path: [algorithm.key for algorithm in algorithms] for path, algorithms in jobs.items()}
    try:
        if observer.digests is not None:
            return observer.digests(files)
        return digest_files(root, files, cancelled=observer.cancelled, progress=observer.progress)
    except OSError as error:
        # Word for word what Triton's agent states.
        raise InvalidArgumentError(
            f"failed to open text file for read {show(error.filename)}: {error.strerror}"
        ) from error


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a check. The model is as it should be if ``findings`` is empty.

    ``digests`` has those of single files, by path; ``tree_digest`` is None where no manifest was checked.
    """

    findings: tuple[Finding, ...] = ()
    files: int = 0
    bytes_read: int = 0
    digests: dict[str, str] | None = None
    tree_digest: str | None = None
    weak: tuple[str, ...] = ()
    """The algorithms among those used that an attacker can forge."""


def find_digest_files(root: Path) -> tuple[str, ...]:
    """The digest files with a standard name in ``root``; a link that leads nowhere counts, and will be refused."""
    return tuple(name for name in STANDARD_NAMES if os.path.lexists(root / name))


def check(
    root: Path,
    request: Request,
    *,
    trusted: Sequence[Entry] = (),
    observer: Observer | None = None,
    thorough: bool = True,
) -> Verdict:
    """Compare what is below ``root`` with ``request``.

    Args:
        root: The model's directory.
        request: What to compare with.
        trusted: Digests from outside of the model; they cover all of it.
        observer: Gets the progress.
        thorough: Compute digests even if files are missing, unlisted or links, to find all that is wrong at once.

    Raises:
        InvalidArgumentError: a manifest, an index or a listed file cannot be read.
        UnsafePathError: a name that leaves the directory, a link.
        UnsupportedError: an algorithm that is not known here or not installed.
        CancelledError: the observer reported it.
    """
    tree = scan_tree(root)
    found = [entry for name in request.manifests for entry in _read_manifest(root, name, request.algorithm)]
    listed = [*trusted, *found]
    bases = {name.rpartition("/")[0] for name in request.manifests} | ({""} if trusted else set())
    findings = [*_structure(tree, listed, request, bases), *_incomplete(root, tree, request.indexes)]
    if findings and not thorough:
        return Verdict(tuple(findings))
    present = [entry for entry in listed if entry.path in tree.files]
    digests = digests_of(root, _jobs([*(file.entry for file in request.files), *present]), observer)
    return Verdict(
        findings=(*_mismatches(request.files, digests), *_changed(present, digests), *findings),
        files=len(digests),
        bytes_read=sum(tree.files.get(path, 0) for path in digests),
        digests={file.entry.path: _spelled(file.entry, digests) for file in request.files},
        tree_digest=_tree_digest(present, digests) if listed else None,
        weak=tuple(sorted({entry.algorithm.name for entry in listed if entry.algorithm.weak} | _weak(request.files))),
    )


def _read_manifest(root: Path, name: str, default: Algorithm | None) -> list[Entry]:
    entries = read_entries(read_inside(root, name, "manifest"), name, default)
    base = name.rpartition("/")[0]
    return [Entry(f"{base}/{e.path}", e.algorithm, e.digest, e.size) for e in entries] if base else entries


def _structure(tree: Tree, listed: Sequence[Entry], request: Request, bases: Collection[str]) -> Iterator[Finding]:
    """All that can be seen without reading a file. Only what lies below one of ``bases`` counts."""
    exempt = request.ignore | set(request.manifests)
    links = set(tree.links) | set(tree.special)
    for entry in listed:
        size = tree.files.get(entry.path)
        if size is None and entry.path not in links:
            yield Finding(Kind.MISSING, entry.path)
        elif size is not None and entry.size is not None and entry.size != size:
            yield Finding(Kind.CHANGED, entry.path, f"expect: {entry.size} bytes, got: {size}")
    paths = {entry.path for entry in listed}
    yield from (Finding(Kind.LINK, path) for path in _covered(tree.links, bases))
    yield from (Finding(Kind.SPECIAL, path) for path in _covered(tree.special, bases))
    yield from (Finding(Kind.UNLISTED, path) for path in _covered(tree.files, bases) if path not in paths | exempt)
    emptied = {path.rpartition("/")[0] for path in paths}
    yield from (Finding(Kind.EMPTY, path) for path in _covered(tree.empty, bases) if path not in exempt | emptied)


def _covered(paths: Iterable[str], bases: Collection[str]) -> list[str]:
    return [path for path in paths if any(not base or path.startswith(f"{base}/") for base in bases)]


def _incomplete(root: Path, tree: Tree, indexes: Sequence[str]) -> Iterator[Finding]:
    for wanted in indexes:
        found = [path for path in tree.files if path.endswith(INDEX_SUFFIX)] if wanted == ALL_INDEXES else [wanted]
        if not found:
            raise InvalidArgumentError(f"no file *{INDEX_SUFFIX} in the model's directory")
        for index in found:
            yield from (Finding(Kind.INCOMPLETE, index, fault) for fault in check_index(root, index))


def _jobs(entries: Iterable[Entry]) -> dict[str, list[Algorithm]]:
    jobs: dict[str, list[Algorithm]] = {}
    for entry in entries:
        algorithms = jobs.setdefault(entry.path, [])
        if entry.algorithm not in algorithms:
            algorithms.append(entry.algorithm)
    return jobs


def _mismatches(files: Iterable[Expected], digests: Digests) -> Iterator[Finding]:
    for file in files:
        name, path = file.entry.algorithm.name, file.entry.path
        got = digests[path][file.entry.algorithm.key]
        if got != file.entry.digest:
            # Word for word what Triton's agent states.
            text = f"Mismatched {name} hash for file {show(path)}, expect: {file.value}, got: {got}"
            yield Finding(Kind.MISMATCH, path, text)


def _changed(entries: Iterable[Entry], digests: Digests) -> Iterator[Finding]:
    for entry in entries:
        got = digests[entry.path][entry.algorithm.key]
        if got != entry.digest:
            yield Finding(Kind.CHANGED, entry.path, f"{entry.algorithm.name} expect: {entry.digest}, got: {got}")


def _spelled(entry: Entry, digests: Digests) -> str:
    return f"{entry.algorithm.key}:{digests[entry.path][entry.algorithm.key]}"


def _weak(files: Iterable[Expected]) -> set[str]:
    return {file.entry.algorithm.name for file in files if file.entry.algorithm.weak}


def _tree_digest(entries: Iterable[Entry], digests: Digests) -> str:
    """One digest for all: SHA-256 over the tagged lines, sorted, of the digests that were found."""
    lines = sorted(
        format_digest_file({entry.path: digests[entry.path][entry.algorithm.key]}, entry.algorithm, tagged=True)
        for entry in entries
    )
    return f"sha256:{hashlib.sha256(b''.join(lines)).hexdigest()}"
