"""Looking for what a load should not have left behind."""

import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from repoagent.storage.paths.trees import tree_size
from repoagent.storage.workspaces.locks import FileLock

_PROCESS: Final = re.compile(r"[0-9]+-[0-9a-f]{16}")
_LOCK_NAMES: Final = (".lock", ".alive")
_LOCK_SUFFIXES: Final = (".build", ".use")
_BLOCK: Final = 1 << 20


def workspace_leftovers(*roots: Path) -> list[Path]:
    """What lies in the directories of processes below ``roots`` (on disk or in memory), sorted, but for their locks."""
    relative = ((path, path.relative_to(root)) for root in roots for path in _all(root))
    found = (path for path, inner in relative if any(_PROCESS.fullmatch(part) for part in inner.parts[:-1]))
    return sorted(path for path in found if path.name not in _LOCK_NAMES)


def files_holding(marker: bytes, *roots: Path) -> list[Path]:
    """The files below ``roots`` whose content or name holds ``marker``, sorted. Links are not followed."""
    return sorted(path for root in roots for path in _all(root) if _holds(path, marker))


def held_locks(*roots: Path) -> list[Path]:
    """The lock files of workspaces and caches below ``roots`` that are held now, sorted."""
    return sorted(path for root in roots for path in _all(root) if _is_lock(path) and _is_held(path))


def cache_faults(root: Path) -> list[str]:
    """What is wrong with the cache at ``root``: leftovers of builders, results that are not as they were kept."""
    if not root.exists():
        return []
    objects = [fault for path in sorted((root / "objects").iterdir()) for fault in _object_faults(path, root)]
    return objects + [f"{path.name}: another content" for path in (root / "blobs").iterdir() if not _is_named(path)]


def _object_faults(path: Path, root: Path) -> Iterator[str]:
    if path.name.startswith("."):
        yield f"{path.name}: left by a builder"
        return
    size, found = (root / "meta" / path.name).read_text(), tree_size(path, shared=False)
    if size != str(found):
        yield f"{path.name}: {found} bytes of its own, expected {size or 'a size'}"
    writable = [part for part in (path, *_all(path)) if part.stat().st_mode & 0o222]
    yield from (f"{part.relative_to(root)}: writable" for part in writable)


def _is_named(blob: Path) -> bool:
    with blob.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest() == blob.name


def _all(root: Path) -> Iterable[Path]:
    for directory, names, files in os.walk(root):
        yield from (Path(directory, name) for name in (*names, *files))


def _holds(path: Path, marker: bytes) -> bool:
    if marker in os.fsencode(path.name):
        return True
    if path.is_symlink() or not path.is_file():
        return False
    before = b""
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            if marker in before + block:
                return True
            before = block[-len(marker) :]
    return False


def _is_lock(path: Path) -> bool:
    return path.is_file() and (path.name in _LOCK_NAMES or path.suffix in _LOCK_SUFFIXES)


def _is_held(path: Path) -> bool:
    lock = FileLock(path)
    free = lock.try_acquire()
    lock.release()
    return not free
