"""Files that were downloaded, each once, under the digest of its content.

Below the cache's directory::

    blobs/<sha256>          a complete, read-only file; the models that have it are hard links to it
    parts/<name>            a download that is not complete, held under locks/<name>.part
    known/<name>            the SHA-256 of what a location holds, for its size and tag

A blob without another name is used by no model and may go. Its access time is when it was last given out.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from repoagent.errors import UnavailableError, UnsafePathError
from repoagent.storage.paths.trees import tree_size
from repoagent.storage.transfer.download_file import download_file
from repoagent.storage.transfer.partial_file import ENDINGS, PartialFile, boot
from repoagent.storage.transfer.partial_file import remove as remove_unfinished
from repoagent.storage.transfer.streams import DownloadContext, RemoteFile
from repoagent.storage.workspaces.locks import FileLock
from repoagent.storage.workspaces.private import private_directory

OFFLINE_VARIABLE: Final = "REPOAGENT_OFFLINE"
"""Set to 1, nothing is downloaded: models are loaded from what the cache has."""

_BLOCK: Final = 512
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_WEAK: Final = "git-sha1:"
"""Digests for which two files can be made."""
_SMALL: Final = 8 << 20
"""Smaller blobs are on the disk for sure only once a model has them: thousands of syncs take longer than a download."""
_FICLONE: Final = 0x40049409
_FORGOTTEN_SECONDS: Final = 7 * 24 * 3600
"""An unfinished download that no one continued for a week goes."""
logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Spare:
    """Something that could go: when it was last used, its size, and how to remove it (false: it is in use)."""

    name: str
    last_use: int
    size: int
    remove: Callable[[], bool]


class BlobStore:
    """The blobs of one cache. Thread-safe, and any number of processes may share it."""

    def __init__(self, path: Path, locks: Path) -> None:
        """Make the directories; remove downloads that no one continued for a week."""
        self._root = path
        self._locks = locks
        self._blobs = private_directory(path / "blobs", purpose="cache")
        self._parts = private_directory(path / "parts", purpose="cache")
        self._known = private_directory(path / "known", purpose="cache")
        self._sweep()

    def is_there(self) -> bool:
        """Whether its directories still exist."""
        return all(path.is_dir() for path in (self._blobs, self._parts, self._known))

    def place(
        self,
        file: RemoteFile,
        target: Path,
        context: DownloadContext,
        *,
        most: int,
        offline: bool = False,
        fresh: Callable[[str], object] = lambda _path: None,
    ) -> tuple[str, int]:
        """Put ``file`` at ``target``, downloaded if it is not here; its SHA-256 and its size.

        ``target`` is a link to the blob within the cache, elsewhere a private copy. One process downloads a file while
        others wait. ``fresh`` gets the path of one whose bytes were hashed now: others are known by what was noted of
        them. Raises as :func:`~repoagent.storage.transfer.download_file.download_file` does, and ``UnavailableError``
        if ``offline``.
        """
        while True:
            name = self._name_of(file)
            if name is not None and (size := self._give(name, file.size, target)) is not None:
                context.count(size)
                return name, size
            if offline:
                raise UnavailableError(
                    f"{file.name} is not in the cache, and the server is offline ({OFFLINE_VARIABLE})"
                )
            with self._downloader(file, context) as lock:
                name = self._name_of(file)  # perhaps another process has just brought it
                missing, published = name is None or not self._has(name, file.size), False
                if name is None or missing:
                    name, published = self._download(file, context, most)
                size = self._give(name, None, target)
                lock.unlink()
            if size is not None:
                context.count(0 if missing else size)
                if published:
                    fresh(file.path)
                return name, size

    def spares(self) -> Iterator[Spare]:
        """Blobs that no model has, and downloads that no one works on."""
        with os.scandir(self._blobs) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if status.st_nlink == 1:
                    name = f"blobs/{entry.name}"
                    yield Spare(name, status.st_atime_ns, status.st_size, partial(_unlink_unused, entry.path))
        for name in self._unfinished():
            with contextlib.suppress(FileNotFoundError):
                status = (self._parts / name).stat()
                size = status.st_blocks * _BLOCK
                yield Spare(f"parts/{name}", status.st_mtime_ns, size, partial(self._remove_part, name))

    def size(self) -> int:
        """The bytes of all blobs and unfinished downloads."""
        parts = sum(path.stat().st_blocks * _BLOCK for path in self._parts.iterdir() if path.exists())
        return tree_size(self._blobs) + parts

    def _name_of(self, file: RemoteFile) -> str | None:
        """The SHA-256 of the file, if it can be known without asking anybody."""
        algorithm, _, digest = file.digest.partition(":")
        if algorithm == "sha256":
            return digest
        try:
            text = (self._known / _key_of(file)).read_text()
        except OSError:
            return None
        return text if _DIGEST.fullmatch(text) else None

    def _has(self, name: str, size: int | None) -> bool:
        try:
            return (self._blobs / name).stat().st_size == size or size is None
        except FileNotFoundError:
            return False

    def _give(self, name: str, size: int | None, target: Path) -> int | None:
        """Put a blob at ``target``; its size, None if it is not there."""
        blob = self._blobs / name
        try:
            status = blob.stat()
            if size is not None and status.st_size != size:
                return None
            os.utime(blob, ns=(time.time_ns(), status.st_mtime_ns))
            if target.resolve().is_relative_to(self._root):
                os.link(blob, target)
            else:
                _copy(blob, target)
        except FileNotFoundError:
            if not target.parent.is_dir():
                raise
            return None  # The quota removed it meanwhile.
        except FileExistsError:
            raise UnsafePathError(f"{target.name!r} is there twice") from None
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            _copy(blob, target)
        return status.st_size

    def _download(self, file: RemoteFile, context: DownloadContext, most: int) -> tuple[str, bool]:
        """The SHA-256 of what was brought, and whether the blob of that name is what was brought."""
        part = self._parts / _part_of(file)
        into = PartialFile(part, f"{_key_of(file)} {file.digest}", provable=bool(file.digest))
        try:
            name, size = download_file(file, into, context, most=most)
            if size >= _SMALL:
                os.fsync(into.fd)
        except BaseException:
            if not any(into.marks):  # nothing that a later download could use
                remove_unfinished(part)
            raise
        finally:
            into.close()
        published = self._publish(into.path, name, size)
        self._remember(file, name)
        remove_unfinished(part)
        return name, published

    def _publish(self, data: Path, name: str, size: int) -> bool:
        """Whether ``data`` is the blob now: not if there was one of that name."""
        data.chmod(0o400)
        blob = self._blobs / name
        try:
            os.link(data, blob)
        except FileExistsError:
            if blob.stat().st_size == size:
                return False
            os.replace(data, blob)  # damaged by a crash of the machine
        return True

    def _remember(self, file: RemoteFile, name: str) -> None:
        if file.digest.startswith("sha256:") or not (file.digest or (file.key and file.tag)):
            return
        beside = self._known / f".{_key_of(file)}.{os.getpid()}"
        beside.write_text(name)
        os.replace(beside, self._known / _key_of(file))

    @contextmanager
    def _downloader(self, file: RemoteFile, context: DownloadContext) -> Iterator[FileLock]:
        lock = FileLock(self._locks / f"{_part_of(file)}.part")
        lock.acquire(cancelled=lambda: context.over)
        try:
            yield lock
        finally:
            lock.release()

    def _unfinished(self) -> list[str]:
        return [name for name in os.listdir(self._parts) if not name.endswith(ENDINGS)]

    def _remove_part(self, name: str) -> bool:
        lock = FileLock(self._locks / f"{name}.part")
        if not lock.try_acquire():
            return False
        try:
            remove_unfinished(self._parts / name)
            lock.unlink()
        finally:
            lock.release()
        return True

    def _sweep(self) -> None:
        """Remove what killed processes left and no later one can use: locks, and parts of what is complete."""
        self._forget_unsynced()
        oldest = time.time() - _FORGOTTEN_SECONDS
        names = {name.removesuffix(ending) for name in os.listdir(self._parts) for ending in ENDINGS}
        for name in names | {path.name.removesuffix(".part") for path in self._locks.glob("*.part")}:
            part = self._parts / name
            with contextlib.suppress(OSError):
                if not part.exists() or part.stat().st_mtime < oldest or (self._blobs / name).exists():
                    self._remove_part(name)

    def _forget_unsynced(self) -> None:
        """After the machine was started again, small blobs that no model has may be damaged."""
        noted = self._root / "boot"
        if noted.exists() and noted.read_text() == boot():
            return
        for path in self._blobs.iterdir():
            with contextlib.suppress(FileNotFoundError):
                if path.stat().st_size < _SMALL:
                    _unlink_unused(str(path))
        beside = self._root / f".boot.{os.getpid()}"
        beside.write_text(boot())
        os.replace(beside, noted)


def _key_of(file: RemoteFile) -> str:
    """What a file is known by where its digest is not a SHA-256: another digest, or where it lies."""
    text = file.digest or f"{file.key or file.name}\n{file.size}\n{file.tag}"
    if file.digest.startswith(_WEAK):  # Another place may have another file with that digest.
        text = f"{file.digest}\n{file.name}"
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _part_of(file: RemoteFile) -> str:
    algorithm, _, digest = file.digest.partition(":")
    return digest if algorithm == "sha256" else _key_of(file)


def _unlink_unused(path: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        if os.stat(path, follow_symlinks=False).st_nlink > 1:
            return False
        os.unlink(path)
    return True


def _copy(source: Path, target: Path) -> None:
    """A private copy, which shares its blocks with the blob where the filesystem can do that."""
    with source.open("rb") as original, target.open("xb") as copy:
        try:
            fcntl.ioctl(copy, _FICLONE, original.fileno())
        except OSError:
            size = os.fstat(original.fileno()).st_size
            done = 0
            while done < size:
                count = os.sendfile(copy.fileno(), original.fileno(), done, size - done)
                if count == 0:
                    raise UnavailableError(f"a file of the cache ended after {done} of {size} bytes") from None
                done += count
