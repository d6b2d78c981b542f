"""Whole directory trees: removing them without following a link, measuring, syncing, making them read-only."""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from repoagent.beneath.opening import check_depth
from repoagent.errors import InternalError, UnsafePathError

_MANY: Final = 64
"""Files above which the whole filesystem is synced at once."""
_DEEP: Final = 64
"""Levels that any walk can go down: each takes a frame of Python and a file descriptor."""
_TOO_DEEP: Final = frozenset({errno.EMFILE, errno.ENAMETOOLONG})


def remove_tree(path: Path, *, wipe: bool = False, keep: str | None = None) -> None:
    """Remove ``path`` and all below it; fine if it is not there. Links are removed, never followed.

    Everything that can go goes, even if something cannot: then this raises ``InternalError``. ``wipe`` truncates each
    file first, so that its pages are freed even if someone has it open; overwriting would add nothing on a memory
    filesystem and promise too much on a disk. ``keep`` names a file directly in ``path`` that goes last.
    """
    if not path.exists():
        return
    failures = _remove_below(path, wipe, keep)
    if failures is None or any(failure.errno in _TOO_DEEP for failure in failures):
        _lift(path)
        failures = _remove_below(path, wipe, keep) or []
    if keep is not None and not failures:
        _attempt(failures, (path / keep).unlink)
    _attempt(failures, lambda: os.rmdir(path))
    if failures and path.exists():
        raise InternalError(f"could not remove {path}: {failures[0]} (and {len(failures) - 1} more errors)")


def _remove_below(path: Path, wipe: bool, keep: str | None) -> list[OSError] | None:
    """What could not be removed; None where the tree is deeper than a walk can go."""
    failures: list[OSError] = []
    try:
        for directory, name, fd in _bottom_up(path, failures):
            if not (keep == name and Path(directory) == path):
                _attempt(failures, partial(_remove_entry, name, fd, wipe))
    except RecursionError:
        return None
    except FileNotFoundError:  # something else removes it, too
        return _remove_below(path, wipe, keep) if path.exists() else failures
    return failures


def _lift(path: Path) -> None:
    """Move directories that lie deep to the top, so that a walk reaches everything."""
    top = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        while _lift_from(top, top, _DEEP):
            pass
    finally:
        os.close(top)


def _lift_from(top: int, fd: int, levels: int) -> bool:
    """Whether a directory so many levels below ``fd`` was moved."""
    moved = False
    for name in os.listdir(fd):
        status = os.stat(name, dir_fd=fd, follow_symlinks=False)
        if not stat.S_ISDIR(status.st_mode):
            continue
        if not levels:
            os.rename(name, f".deep-{status.st_ino}", src_dir_fd=fd, dst_dir_fd=top)
            moved = True
            continue
        inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            moved |= _lift_from(top, inner, levels - 1)
        finally:
            os.close(inner)
    return moved


def tree_size(path: Path, *, shared: bool = True) -> int:
    """The size in bytes of all files below ``path``; files that vanish meanwhile count as empty.

    With ``shared`` false, files that have another name elsewhere (hard links) count as empty, too. Raises
    ``UnsafePathError`` if there are too many directories in one another.
    """
    total = 0
    above = str(path).count("/")
    for directory, _names, files, fd in os.fwalk(path):
        check_depth(directory.count("/") - above, directory.removeprefix(f"{path}/"))
        for name in files:
            try:
                status = os.stat(name, dir_fd=fd, follow_symlinks=False)
                total += status.st_size if shared or status.st_nlink == 1 else 0
            except FileNotFoundError:
                continue
    return total


def sync_tree(path: Path) -> None:
    """Bring every file and directory below ``path`` to the disk."""
    if _is_large(path) and _sync_filesystem(path):
        return
    for _directory, _names, files, fd in os.fwalk(path):
        for name in files:
            _sync(os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd))
        os.fsync(fd)


def make_read_only(path: Path) -> None:
    """Take write permission from all below ``path``; itself it stays writable, so that it can be renamed. Raises
    ``UnsafePathError`` for a link or a special file."""
    for directory, names, files, fd in os.fwalk(path, topdown=False):
        for name in (*names, *files):
            mode = os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode
            if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
                where = os.path.relpath(os.path.join(directory, name), path)
                raise UnsafePathError(f"{where!r} is a link or a special file; only files and directories can be kept")
            if stat.S_IMODE(mode) & ~0o555:  # without need it would be a change of the file
                os.chmod(name, stat.S_IMODE(mode) & 0o555, dir_fd=fd)


def _bottom_up(path: Path, failures: list[OSError]) -> Iterator[tuple[str, str, int]]:
    _make_removable(path)
    device = path.stat().st_dev
    for directory, names, files, fd in os.fwalk(path, topdown=False, onerror=failures.append):
        if os.fstat(fd).st_dev == device:  # what a command has mounted in the tree is not ours to wipe
            for name in (*files, *names):
                yield directory, name, fd


def _make_removable(path: Path) -> None:
    _allow(str(path))
    for directory, names, _files in os.walk(path):
        for name in names:  # before the walk lists it
            _allow(os.path.join(directory, name))


def _allow(directory: str) -> None:
    """Take back what a program may have done to the mode of its directory."""
    if not os.access(directory, os.R_OK | os.W_OK | os.X_OK) and not os.path.islink(directory):
        with suppress(OSError):  # it has gone, or its name is too long for now
            os.chmod(directory, stat.S_IRWXU)


def _remove_entry(name: str, fd: int, wipe: bool) -> None:
    status = os.stat(name, dir_fd=fd, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        os.rmdir(name, dir_fd=fd)
        return
    # A file with a second name still belongs to that one: it is emptied when the last name goes.
    if wipe and stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
        os.chmod(name, stat.S_IRUSR | stat.S_IWUSR, dir_fd=fd)
        os.close(os.open(name, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd))
    os.unlink(name, dir_fd=fd)


def _attempt(failures: list[OSError], action: Callable[[], None]) -> None:
    try:
        action()
    except FileNotFoundError:
        return
    except OSError as error:
        failures.append(error)


def _sync(fd: int) -> None:
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _is_large(path: Path) -> bool:
    count = 0
    for _directory, _names, files in os.walk(path):
        count += len(files)
        if count > _MANY:
            return True
    return False


def _sync_filesystem(path: Path) -> bool:
    """One call for all: a thousand files by themselves take seconds. False where the C library has no such call."""
    syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
    if syncfs is None:
        return False
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if syncfs(fd) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    finally:
        os.close(fd)
    return True
