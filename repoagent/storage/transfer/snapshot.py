"""A private copy of a model: what is judged in it cannot change any more."""

import fcntl
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

from repoagent.beneath import check_depth, check_file
from repoagent.errors import CancelledError, UnsafePathError
from repoagent.storage.paths.faults import full_disk
from repoagent.storage.paths.trees import tree_size

__all__ = ["snapshot"]

_FICLONE: Final = 0x40049409
_BLOCK: Final = 1 << 20
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def snapshot(source: Path, target: Path, *, cancelled: Callable[[], bool] | None = None) -> None:
    """Copy the tree ``source`` into the empty or missing directory ``target``.

    Files share their blocks where the filesystem can (reflink) and are copied elsewhere. They are never hard links:
    who writes to the original must not write to the copy. ``source`` itself may be a link. Times are not kept.

    Raises:
        UnsafePathError: there is a link or a special file in ``source``.
        UnavailableError: the disk is full.
        CancelledError: ``cancelled()`` became true.
    """
    target.mkdir(mode=0o700, exist_ok=True)
    fd = os.open(source, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with full_disk(str(target), tree_size(source)):
            _copy_directory(fd, target, "", cancelled or (lambda: False))
    finally:
        os.close(fd)


def _copy_directory(fd: int, target: Path, prefix: str, cancelled: Callable[[], bool]) -> None:
    # Entries are opened relative to their directory and without following links, so nothing can be swapped under us.
    for name in sorted(os.listdir(fd)):
        path = prefix + name
        _check_cancelled(cancelled)
        entry = _open_entry(fd, name, path)
        try:
            status = os.fstat(entry)
            if stat.S_ISDIR(status.st_mode):
                check_depth(path.count("/") + 1, path)
                (target / name).mkdir(mode=0o700)
                _copy_directory(entry, target / name, path + "/", cancelled)
            else:
                _copy_file(entry, target / name, bool(status.st_mode & stat.S_IXUSR), cancelled)
        finally:
            os.close(entry)


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


def _copy_file(source: int, target: Path, executable: bool, cancelled: Callable[[], bool]) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    copy = os.open(target, flags, 0o700 if executable else 0o600)
    try:
        try:
            fcntl.ioctl(copy, _FICLONE, source)
        except OSError:  # another filesystem, or one that cannot share blocks
            _copy_bytes(source, copy, cancelled)
    finally:
        os.close(copy)


def _copy_bytes(source: int, copy: int, cancelled: Callable[[], bool]) -> None:
    block = memoryview(bytearray(_BLOCK))
    while count := os.readv(source, [block]):
        _check_cancelled(cancelled)
        rest = block[:count]
        while rest:
            rest = rest[os.write(copy, rest) :]


def _check_cancelled(cancelled: Callable[[], bool]) -> None:
    if cancelled():
        raise CancelledError("cancelled while copying the model")
