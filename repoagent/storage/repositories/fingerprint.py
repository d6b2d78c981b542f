"""What a model looks like from outside: enough to see that it changed, without reading a file."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

__all__ = ["FileEntry", "Fingerprint", "fingerprint_of"]


@dataclass(frozen=True, slots=True, order=True)
class FileEntry:
    """One file of a model.

    ``path`` is relative, with ``/``; ``name`` is how the filesystem itself calls the file; ``size`` is in bytes, or
    None if a server does not report it; ``tag`` is the ETag, or whatever else the filesystem changes when it writes
    (mtime and ctime in nanoseconds on a disk), and empty if there is nothing.
    """

    path: str
    size: int | None
    tag: str
    name: str


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Compares equal while no file of the model was added, removed or written."""

    digest: str
    files: int
    size: int


def fingerprint_of(entries: Iterable[FileEntry]) -> Fingerprint:
    """Condense a listing; its order does not matter."""
    ordered = sorted(entries)
    state = hashlib.sha256()
    for entry in ordered:
        # No part can hold a NUL, so that different listings never give the same bytes.
        state.update(f"{entry.path}\0{entry.size}\0{entry.tag}\0".encode("utf-8", "surrogateescape"))
    return Fingerprint(state.hexdigest(), len(ordered), sum(entry.size or 0 for entry in ordered))
