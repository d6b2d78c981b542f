"""Bringing a model, or a part of it, here: through the cache where its content is known, else into a workspace."""

import threading
from collections.abc import Callable
from pathlib import Path

from repoagent.errors import NotFoundError
from repoagent.storage.cache.cache import CacheScope
from repoagent.storage.paths.faults import storage_faults
from repoagent.storage.repositories.listing import FileEntry, fingerprint_of, list_files
from repoagent.storage.repositories.sources import ModelSource
from repoagent.storage.transfer.download_files import Cancelled, Progress
from repoagent.storage.transfer.localize import check_unchanged, localize
from repoagent.storage.transfer.streams import remote_files


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

        Args:
            source: The model.
            directory: Called at most once per fetch, with its size in bytes; returns a private directory to put it in.
            cache: Used for models whose filesystem gives each file a tag; None (confidential loads) keeps nothing.
            progress: See :data:`~repoagent.storage.transfer.download_files.Progress`.
            cancelled: Likewise.
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
