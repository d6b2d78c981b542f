"""Results that outlive a load: one builder per key over all processes, shared read-only, within a quota."""

import logging
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from repoagent.errors import InvalidArgumentError
from repoagent.public_text import hide
from repoagent.storage.cache.cache_store import CacheStore, name_of
from repoagent.storage.transfer.download_context import DownloadContext
from repoagent.storage.transfer.download_files import WORKERS, Progress, download_files
from repoagent.storage.transfer.localize import NO_LIMIT
from repoagent.storage.transfer.streams import RemoteFile
from repoagent.storage.workspaces.locks import FileLock
from repoagent.storage.workspaces.private import default_cache_path

logger = logging.getLogger(__name__)

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
        workers: int = WORKERS,
        progress: Progress | None = None,
        cancelled: Callable[[], bool] | None = None,
        most: int = NO_LIMIT,
        offline: bool = False,
    ) -> dict[str, tuple[str, int]]:
        """Put ``files`` below the directory ``target``, downloaded if the cache has not got them yet.

        One process downloads a file while others wait. What a killed download left is continued. Within the cache
        (a directory that :meth:`get_or_build` gave) the files are links, elsewhere private copies.

        Returns and raises what :func:`~repoagent.storage.transfer.download_files.download_files` does.
        """
        blobs = self._cache.open_store().blobs

        def place(file: RemoteFile, path: Path, context: DownloadContext) -> tuple[str, int]:
            return blobs.place(file, path, context, most=most, offline=offline)

        return download_files(files, target, place, workers=workers, progress=progress, cancelled=cancelled)

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
