"""A private copy of a model: what is judged in it cannot change any more."""

import fcntl
import hashlib
import os
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from repoagent.beneath.opening import check_depth, check_file
from repoagent.errors import CancelledError, UnsafePathError, full_disk
from repoagent.storage.paths.trees import tree_size
from repoagent.storage.workspaces.process_dir import check_space, free_bytes

_FICLONE: Final = 0x40049409
_BLOCK: Final = 1 << 20
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def snapshot(
    source: Path,
    target: Path,
    *,
    cancelled: Callable[[], bool] | None = None,
    hashed: Callable[[os.stat_result, Mapping[str, str]], object] | None = None,
    progress: Callable[[int, int | None, str], None] = lambda _done, _total, _what: None,
) -> int:
    """Copy the tree ``source`` into the empty or missing directory ``target``; return the bytes that were copied.

    Files share their blocks where the filesystem can (reflink), which counts no bytes, and are copied elsewhere. They
    are never hard links: who writes to the original must not write to the copy. ``source`` itself may be a link. Times
    are not kept.

    ``cancelled`` is asked between files and blocks. ``hashed`` gets the status of each copied file and the SHA-256 of
    the bytes that were written; no byte of shared blocks goes by. ``progress`` gets the bytes copied so far and those
    of the tree, after each block.

    Raises ``UnsafePathError`` for a link or a special file in ``source``, ``UnavailableError`` if the disk is full, or
    would be, and ``CancelledError``.
    """
    target.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        total = tree_size(source)
        with full_disk(str(target), total), ExitStack() as stack:
            copying = _Copying(stack, cancelled or (lambda: False), hashed, lambda done: progress(done, total, ""))
            copying.directory(fd, target, "")
            return copying.bytes
    finally:
        os.close(fd)


class _Copying:
    """One snapshot. A large file is hashed by a second thread, while this one writes."""

    def __init__(
        self,
        stack: ExitStack,
        cancelled: Callable[[], bool],
        hashed: Callable[[os.stat_result, Mapping[str, str]], object] | None,
        progress: Callable[[int], None],
    ) -> None:
        self.bytes = 0
        self._progress = progress
        self._cancelled = cancelled
        self._hashed = hashed
        self._block = memoryview(bytearray(_BLOCK))
        self._hasher = stack.enter_context(ThreadPoolExecutor(1, "snapshot-digest"))

    def directory(self, fd: int, target: Path, prefix: str) -> None:
        """Copy what is in ``fd``."""
        # Entries are opened relative to their directory and without following links, so nothing is swapped under us.
        for name in sorted(os.listdir(fd)):
            path = prefix + name
            self._check_cancelled()
            entry = _open_entry(fd, name, path)
            try:
                status = os.fstat(entry)
                if stat.S_ISDIR(status.st_mode):
                    check_depth(path.count("/") + 1, path)
                    (target / name).mkdir(mode=0o700)
                    self.directory(entry, target / name, path + "/")
                else:
                    self._file(entry, target / name, status)
            finally:
                os.close(entry)

    def _file(self, source: int, target: Path, status: os.stat_result) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        copy = os.open(target, flags, 0o700 if status.st_mode & stat.S_IXUSR else 0o600)
        try:
            try:
                fcntl.ioctl(copy, _FICLONE, source)
            except OSError:  # another filesystem, or one that cannot share blocks
                # A file with holes may be far larger than what it takes, and the disk is not this model's alone.
                free = free_bytes(target.parent)
                check_space(target.parent, status.st_size, what="a private copy of the model", free=free)
                digest = self._copy(source, copy, status.st_size)
                if self._hashed is not None:
                    self._hashed(os.fstat(copy), {"sha256": digest})
        finally:
            os.close(copy)

    def _copy(self, source: int, copy: int, size: int) -> str:
        """Copy no more than ``size`` bytes: a file that someone goes on writing to has no end."""
        digest, left = hashlib.sha256(), size
        while left and (count := os.readv(source, [self._block[:left]])):
            self._check_cancelled()
            left -= count
            rest = self._block[:count]
            hashing = None
            if self._hashed is not None:
                if count < _BLOCK:
                    digest.update(rest)
                else:
                    hashing = self._hasher.submit(digest.update, rest)
            try:
                while rest:
                    rest = rest[os.write(copy, rest) :]
            finally:
                if hashing is not None:
                    hashing.result()
            self.bytes += count
            self._progress(self.bytes)
        return digest.hexdigest()

    def _check_cancelled(self) -> None:
        if self._cancelled():
            raise CancelledError("cancelled while copying the model")


def _open_entry(directory: int, name: str, path: str) -> int:
    _check_kind(os.stat(name, dir_fd=directory, follow_symlinks=False), path)
    # Without O_NONBLOCK a named pipe that takes the file's place now would keep us here.
    fd = os.open(name, _READ | os.O_NONBLOCK, dir_fd=directory)
    try:
        status = os.fstat(fd)
        if not stat.S_ISDIR(status.st_mode):
            check_file(status, directory, path)
    except UnsafePathError:
        os.close(fd)
        raise
    return fd


def _check_kind(status: os.stat_result, path: str) -> None:
    if stat.S_ISLNK(status.st_mode):
        raise UnsafePathError(f"{path!r} is a link; a model that is checked may have none")
    if not (stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)):
        raise UnsafePathError(f"{path!r} is neither a file nor a directory")
