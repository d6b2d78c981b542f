"""Results that outlive a load: one builder per key over all processes, shared read-only, within a quota."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from repoagent.errors import InvalidArgumentError, NotFoundError, storage_faults
from repoagent.public_text import hide
from repoagent.storage.cache.cache_store import CacheStore, name_of
from repoagent.storage.repositories.listing import FileEntry, fingerprint_of, list_files
from repoagent.storage.repositories.sources import ModelSource
from repoagent.storage.transfer.localize import (
    NO_LIMIT,
    Cancelled,
    Progress,
    check_unchanged,
    download_files,
    localize,
)
from repoagent.storage.transfer.streams import DownloadContext, RemoteFile, remote_files
from repoagent.storage.workspaces.locks import FileLock
from repoagent.storage.workspaces.private import default_cache_path

_PRIVATE_NAMES: Final = 2
"""``objects``, and the digest of a key."""


class Cache:
    """The cache of this machine, or rather of this user on it. Thread-safe; any number of processes may share it.

    A path that was given out stays valid until the scope that asked for it is closed: :meth:`scope` makes one per
    load, and :meth:`get_or_build` uses one that lives as long as the cache object. Nothing is created on disk before
    the first use, or :meth:`check`.
    """

    def __init__(self, path: Path | None = None, *, quota: int | None = None) -> None:
        """Remember where the cache is.

        Args:
            path: By default ``$REPOAGENT_CACHE``, else ``$XDG_CACHE_HOME/repoagent``, else ``~/.cache/repoagent``.
            quota: Bytes. After a build, what was used longest ago goes, except what is in use. None: no limit.

        Raises:
            InvalidArgumentError: a negative quota.
        """
        if quota is not None and quota < 0:
            raise InvalidArgumentError(f"the cache quota is {quota} bytes; expected 0 or more, or none")
        self._path = path.resolve() if path is not None else default_cache_path(os.environ)
        hide(self._path, "cache", depth=_PRIVATE_NAMES)
        self._quota = quota
        self._lock = threading.Lock()
        self._store: CacheStore | None = None
        self._own = CacheScope(self)

    def __enter__(self) -> "Cache":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> Path:
        """The directory of the cache; it may not exist yet."""
        return self._path

    def scope(self, *, cancelled: Callable[[], bool] | None = None) -> "CacheScope":
        """Something to get results from and to keep them in use until it is closed.

        Args:
            cancelled: Asked while waiting for another builder; true gives up with ``CancelledError``.
        """
        return CacheScope(self, cancelled=cancelled)

    def get_or_build(self, key: str, build: Callable[[Path], None]) -> Path:
        """As :meth:`CacheScope.get_or_build`, in use until :meth:`close`."""
        return self._own.get_or_build(key, build)

    def close(self) -> None:
        """Let go of all that this object itself gave out. Nothing is removed."""
        self._own.close()

    def open_store(self) -> CacheStore:
        """The files of the cache; the first call cleans up after killed builders. Made again if they were removed."""
        with self._lock:
            lost = self._store is not None and not self._store.is_there()
            if self._store is None or lost:
                self._store = CacheStore(self._path)
            if lost:
                logger.warning("something removed directories of the cache %s; they are made again", self._path)
            return self._store

    def check(self) -> None:
        """Make the directories of the cache now, for a cache that someone chose: what is wrong with it shows.

        Raises:
            InvalidArgumentError: it is not a directory, another user's, or others can write to it.
            UnavailableError: it cannot be created or written to.
        """
        self.open_store().check()

    def shrink(self) -> None:
        """Enforce the quota now."""
        if self._quota is not None:
            store = self.open_store()
            with store.faults():
                store.shrink(self._quota)


class CacheScope:
    """What one user of the cache holds on to. Closing it allows the quota to remove what it used."""

    def __init__(self, cache: Cache, *, cancelled: Callable[[], bool] | None = None) -> None:
        self._cache = cache
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._held: dict[str, FileLock] = {}

    def __enter__(self) -> "CacheScope":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def get_or_build(self, key: str, build: Callable[[Path], None]) -> Path:
        """Return the read-only directory kept under ``key``; make it first if it is not there.

        ``build`` gets an empty directory to fill, on the disk and readable by this user only. One process builds
        while others wait. If ``build`` raises, or dies, nothing of it is kept.

        Raises:
            UnsafePathError: ``build`` left a link or a special file.
            CancelledError: cancelled while waiting for another builder.
            UnavailableError: the cache cannot be written to.
        """
        name = name_of(key)
        store = self._cache.open_store()
        built = False
        # Someone may remove it between its building and our holding it: look again until it is held.
        while (path := self._hold_existing(store, name)) is None:
            with self._builder(store, name):
                if not store.exists(name):
                    store.build(name, build)
                    built = True
        if built:
            self._cache.shrink()
        return path

    def download(
        self,
        files: Sequence[RemoteFile],
        target: Path,
        *,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
        most: int = NO_LIMIT,
        offline: bool = False,
        fresh: Callable[[str], object] = lambda _path: None,
    ) -> dict[str, tuple[str, int]]:
        """Put ``files`` below the directory ``target``, downloaded if the cache has not got them yet.

        One process downloads a file while others wait. What a killed download left is continued. Within the cache
        (a directory that :meth:`get_or_build` gave) the files are links, elsewhere private copies. ``fresh`` gets the
        path of each that was downloaded now, perhaps from several threads.

        Returns and raises what :func:`~repoagent.storage.transfer.localize.download_files` does.
        """
        blobs = self._cache.open_store().blobs

        def place(file: RemoteFile, path: Path, context: DownloadContext) -> tuple[str, int]:
            return blobs.place(file, path, context, most=most, offline=offline, fresh=fresh)

        return download_files(files, target, place, progress=progress, cancelled=cancelled)

    def close(self) -> None:
        """Let go of everything; again is fine, and so is using the scope afterwards."""
        with self._lock:
            held, self._held = self._held, {}
        for lock in held.values():
            lock.release()

    @contextmanager
    def _builder(self, store: CacheStore, name: str) -> Iterator[None]:
        """Be the one who builds, for a block."""
        lock = store.build_lock(name)
        with store.faults():
            lock.acquire(cancelled=self._cancelled)
        try:
            yield
        finally:
            lock.release()

    def _hold_existing(self, store: CacheStore, name: str) -> Path | None:
        """The finished result, in use from now on; None if there is none."""
        lock, path = store.use_lock(name), None
        try:
            with store.faults():
                lock.acquire(shared=True, cancelled=self._cancelled)
                path = store.find(name)
        finally:
            if path is None:
                lock.release()
        if path is None:
            return None
        with self._lock:
            before = self._held.get(name)
            self._held[name] = lock
        if before is not None:
            before.release()
        return path


class Fetcher:
    """Fetches directories of one remote model, each once, one after the other. Thread-safe."""

    def __init__(
        self,
        source: ModelSource,
        *,
        directory: Callable[[int], Path],
        cache: CacheScope | None = None,
        progress: Progress | None = None,
        cancelled: Cancelled | None = None,
    ) -> None:
        """Fetch nothing yet.

        ``directory`` is called at most once per fetch, with its size in bytes, and returns a private one to put it in.
        ``cache`` is for models whose filesystem gives each file a tag; None (confidential loads) keeps nothing.
        """
        self._source = source
        self._directory = directory
        self._cache = cache
        self._progress = progress
        self._cancelled = cancelled
        self._lock = threading.Lock()
        self._fetched: dict[str, Path] = {}

    def __call__(self, subtree: str = "") -> Path:
        """A directory of this machine with what lies in ``subtree`` of the model (all of it by default).

        Nothing may be written into it. Errors as in :func:`~repoagent.storage.transfer.localize.localize`.
        """
        with self._lock:
            if subtree not in self._fetched:
                self._fetched[subtree] = self._fetch(subtree)
            return self._fetched[subtree]

    def _fetch(self, subtree: str) -> Path:
        entries = _below(self._source.entries(), subtree)
        if not entries:
            raise NotFoundError(f"{self._source.location} has no directory '{subtree}'")
        if self._cache is not None and self._can_be_told(entries):
            digest = fingerprint_of(entries).digest
            key = f"remote\n{self._source.location}\n{subtree}\n{digest}"
            cache = self._cache
            return cache.get_or_build(key, lambda target: self._through(cache, subtree, entries, target))
        target = self._directory(sum(entry.size or 0 for entry in entries)) / f"{len(self._fetched) + 1}"
        localize(
            self._source.fs,
            self._root(subtree),
            target,
            location=self._location(subtree),
            entries=entries,
            progress=self._progress,
            cancelled=self._cancelled,
        )
        return target

    def _through(self, cache: CacheScope, subtree: str, entries: list[FileEntry], target: Path) -> None:
        """Bring files by way of the cache, which may have some of them from another model or an interrupted load."""
        files = list(remote_files(self._source.fs, self._location(subtree), entries))
        cache.download(files, target, progress=self._progress, cancelled=self._cancelled)
        root = self._root(subtree)
        with storage_faults("list", root):
            check_unchanged(root, entries, list_files(self._source.fs, root))

    def _root(self, subtree: str) -> str:
        return f"{self._source.root.rstrip('/')}/{subtree}".rstrip("/")

    def _location(self, subtree: str) -> str:
        return f"{self._source.location.rstrip('/')}/{subtree}".rstrip("/")

    def _can_be_told(self, entries: list[FileEntry]) -> bool:
        """Equal tags must mean equal content, in another process too; a memory filesystem's clock is no such tag."""
        return "memory" not in self._source.fs.protocol and all(entry.tag for entry in entries)


def _below(entries: list[FileEntry], subtree: str) -> list[FileEntry]:
    if not subtree:
        return entries
    prefix = subtree + "/"
    chosen = [entry for entry in entries if entry.path.startswith(prefix)]
    return [FileEntry(entry.path.removeprefix(prefix), entry.size, entry.tag, entry.name) for entry in chosen]


logger = logging.getLogger(__name__)
