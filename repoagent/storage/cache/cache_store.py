"""The files of the cache, and what may be done to them under which lock.

Below the cache's directory::

    objects/<name>              a finished, read-only result; <name> is the SHA-256 of its key
    objects/.<name>.<random>/   being built or removed, under the build lock of <name>
    meta/<name>                 its size in bytes as text; the file's mtime is the last use
    locks/<name>.build          held by who builds or removes it
    locks/<name>.use            shared by those who use it; exclusive while it is removed

Files that were downloaded are links to blobs (:mod:`~repoagent.storage.cache.blob_store`); their sizes are not in
``meta``.

Two locks, because those who wait for a builder must not wait for those who use what it built. A directory with a dot
whose build lock is free was left by a killed process: it counts for nothing and is removed.
"""

import hashlib
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.storage.cache.blob_store import BlobStore, Spare
from repoagent.storage.paths.trees import make_read_only, remove_tree, sync_tree, tree_size
from repoagent.storage.workspaces.locks import FileLock
from repoagent.storage.workspaces.private import private_directory, private_root

_LEFTOVER: Final = re.compile(r"\.([0-9a-f]{64})\.[0-9a-f]{16}")
logger = logging.getLogger(__name__)


def name_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


class CacheStore:
    """The layout on disk. It takes locks only where a docstring states it; all else is the caller's lock."""

    def __init__(self, path: Path) -> None:
        """Create the directories and remove what killed builders left. Raises as :func:`private_root` does."""
        self.path = path = private_root(path, purpose="cache")
        self._objects = private_directory(path / "objects", purpose="cache")
        self._meta = private_directory(path / "meta", purpose="cache")
        self._locks = private_directory(path / "locks", purpose="cache")
        self.blobs: Final = BlobStore(path, self._locks)
        self._sweep()

    def is_there(self) -> bool:
        """Whether every directory of the cache still exists."""
        return self.blobs.is_there() and all(path.is_dir() for path in (self._objects, self._meta, self._locks))

    def check(self) -> None:
        """Raise ``UnavailableError`` if this user cannot write to the cache. A full disk is fine: that may pass."""
        for path in (self._objects, self._meta, self._locks):
            if not os.access(path, os.W_OK | os.X_OK, effective_ids=True):
                raise UnavailableError(
                    f"the cache directory {self.path} cannot be written to by this user (it is {path.name}/ in it that "
                    "cannot): correct that, or name another directory"
                )

    def build_lock(self, name: str) -> FileLock:
        """A new, unheld lock for who builds."""
        return FileLock(self._locks / f"{name}.build")

    def use_lock(self, name: str) -> FileLock:
        """A new, unheld lock to share while using."""
        return FileLock(self._locks / f"{name}.use")

    def exists(self, name: str) -> bool:
        """Whether there is a finished result."""
        return (self._objects / name).is_dir()

    def find(self, name: str) -> Path | None:
        """The finished result, marked as used now; None if there is none. Needs the use lock."""
        if not self.exists(name):
            return None
        (self._meta / name).touch(mode=0o600)
        return self._objects / name

    def build(self, name: str, build: Callable[[Path], None]) -> None:
        """Make the result; nothing counts until all of it is on the disk. Needs the build lock."""
        self._remove_leftovers(name)
        work = self._beside(name)
        result = work / "result"  # one level down: a builder may make things beside its result, too
        try:
            with self.faults():
                result.mkdir(mode=0o700, parents=True)
            build(result)
            with self.faults():
                self._publish(result, name)
        finally:
            remove_tree(work)

    def _publish(self, result: Path, name: str) -> None:
        make_read_only(result)
        sync_tree(result)
        (self._meta / name).write_text(str(tree_size(result, shared=False)))
        result.rename(self._objects / name).chmod(0o500)
        _sync_directory(self._objects)

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turn what the disk under the cache raises into ``UnavailableError``: a load may do without a cache."""
        try:
            yield
        except OSError as error:
            raise UnavailableError(f"cannot write to the cache at {self.path}: {error.strerror or error}") from error

    def shrink(self, quota: int) -> None:
        """Remove what was used longest ago until all together take at most ``quota`` bytes.

        Takes the locks of each; what is in use stays.
        """
        surplus = sum(one.size for one in self._kept()) + self.blobs.size() - quota
        in_use: set[str] = set()
        while surplus > 0:
            results = self._kept()
            kept = {one.name for one in results}
            spares = [one for one in (*results, *self.blobs.spares()) if one.name not in in_use]
            if not spares:
                return
            for one in sorted(spares, key=lambda one: (one.last_use, one.name)):
                if surplus <= 0:
                    return
                if not one.remove():
                    in_use.add(one.name)
                    continue
                surplus -= one.size
                if one.name in kept:
                    break  # It may leave blobs that no one uses, and that were used before the others.

    def _kept(self) -> list[Spare]:
        """All finished results."""
        names = [name for name in os.listdir(self._objects) if not name.startswith(".")]
        return [one for name in names if (one := self._describe(name)) is not None]

    def _describe(self, name: str) -> Spare | None:
        meta = self._meta / name
        try:
            size = meta.read_text() if meta.exists() else ""
            if not size.isdecimal():  # lost; without it the object would count for nothing and never go
                meta.write_text(size := str(tree_size(self._objects / name, shared=False)))
            return Spare(name, meta.stat().st_mtime_ns, int(size), partial(self._evict, name))
        except FileNotFoundError:  # removed by another process
            return None

    def _evict(self, name: str) -> bool:
        """Remove one result; False if it is in use, or someone else is about to remove it."""
        with ExitStack() as stack:
            for lock in (self.build_lock(name), self.use_lock(name)):
                if not lock.try_acquire():
                    return False
                stack.callback(lock.release)
                stack.callback(lock.unlink)
            if not self.exists(name):
                return False
            doomed = self._beside(name)
            (self._objects / name).rename(doomed)  # from here on no one finds it, even if we are killed
            (self._meta / name).unlink(missing_ok=True)
            remove_tree(doomed)
        return True

    def _sweep(self) -> None:
        names = {match[1] for entry in os.listdir(self._objects) if (match := _LEFTOVER.fullmatch(entry))}
        for name in sorted(names):
            lock = self.build_lock(name)
            if not lock.try_acquire():
                continue
            try:
                self._remove_leftovers(name)
            except (RepoAgentError, OSError) as error:
                logger.warning("cannot remove what a killed builder left in the cache: %s", error)
            finally:
                lock.release()

    def _remove_leftovers(self, name: str) -> None:
        for path in self._objects.glob(f".{name}.*"):
            remove_tree(path)

    def _beside(self, name: str) -> Path:
        return self._objects / f".{name}.{secrets.token_hex(8)}"


def _sync_directory(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
