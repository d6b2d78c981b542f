"""Opening by a name beneath a root.

A path is walked one directory at a time, each opened relative to the one before and never through a link, so nothing
that is swapped during the walk can lead out of the root: no name is checked first and used later. Links are read and
walked like any other part of a name; who judges files refuses them.

What is opened is a regular file or a directory, never a pipe or a device, and opening it does not wait.
"""

import errno
import os
import posixpath
import stat
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Final, NamedTuple

from repoagent.errors import InvalidArgumentError, UnsafePathError

_PIECE: Final = 1 << 20
_SHOWN: Final = 200
_LINKS: Final = 40
_NOWHERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})
DEEPEST: Final = 128
"""Directories in one another below a root. Each is open while a name is walked, and walks of trees are recursive."""
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def relative_parts(relative: str) -> tuple[str, ...]:
    """Split a relative path with ``/`` into its parts; empty parts and ``.`` drop out, ``""`` gives none.

    Raises:
        UnsafePathError: absolute, with ``..`` or NUL, not encodable as a file name, or too deep.
    """
    _check_text(relative)
    if relative.startswith("/"):
        raise UnsafePathError(f"{shown(relative)} is an absolute path; expected a path inside the model's directory")
    parts = tuple(part for part in relative.split("/") if part not in ("", "."))
    if ".." in parts:
        raise UnsafePathError(f"{shown(relative)} contains '..'; expected a path inside the model's directory")
    check_depth(len(parts), relative)
    return parts


def check_depth(depth: int, name: str) -> None:
    """Raise ``UnsafePathError`` if ``depth`` directories are too many for ``name``."""
    if depth > DEEPEST:
        raise UnsafePathError(f"{shown(name)} has more than {DEEPEST} directories in one another")


def open_beneath(root: Path | str, name: str, *, follow: bool = True) -> FileIO:
    """Open the regular file ``name`` beneath ``root`` for unbuffered reading; close it.

    ``root`` itself may be a link: it is the operator's.

    Args:
        root: A directory.
        name: Relative, with ``/``.
        follow: Whether links that stay beneath ``root`` are followed.

    Raises:
        OSError: it cannot be opened; ``IsADirectoryError`` for a directory.
        UnsafePathError: the name or a link leads out of ``root``, it is a link and none is followed, a special file,
            or a file with a second name that others than its owner may have given it.
    """
    with _walked(root, name, follow=follow) as (directory, last):
        if last is None:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        fd = os.open(last, _READ, dir_fd=directory)
        try:
            check_file(os.fstat(fd), directory, name)
            return FileIO(fd, "rb")
        except BaseException:
            os.close(fd)
            raise


@contextmanager
def held_beneath(root: Path | str, name: str, *, follow: bool = True) -> Iterator[Path]:
    """A path that leads to the regular file ``name`` beneath ``root`` for a block, whatever becomes of its name.

    For what takes paths only. Errors as in :func:`open_beneath`.
    """
    with open_beneath(root, name, follow=follow) as file:
        yield Path(f"/proc/self/fd/{file.fileno()}")


def read_beneath(root: Path | str, name: str, *, limit: int, follow: bool = True) -> bytes:
    """The content of a file of at most ``limit`` bytes. Errors as in :func:`open_beneath` and :func:`read_at_most`."""
    with open_beneath(root, name, follow=follow) as file:
        return read_at_most(file, limit, shown(name))


def read_at_most(file: FileIO, limit: int, what: str) -> bytes:
    """All of ``file``, which messages call ``what``. Raises ``InvalidArgumentError`` if it has more than ``limit``
    bytes; no more than that was read."""
    content = read_up_to(file, limit + 1)
    if len(content) > limit:
        raise InvalidArgumentError(f"{what} is larger than {limit} bytes, which is the limit")
    return content


def read_up_to(file: FileIO, most: int) -> bytes:
    """The first ``most`` bytes of ``file``, or all of it."""
    pieces: list[bytes] = []
    while most > 0 and (piece := file.read(min(most, _PIECE))):
        pieces.append(piece)
        most -= len(piece)
    return b"".join(pieces)


def read_small_file(path: Path | str, *, limit: int) -> bytes:
    """The content of a file that the operator or a key reference names by its whole path; links are followed.

    Raises:
        OSError: it cannot be read.
        InvalidArgumentError: it is not a regular file, or is larger than ``limit`` bytes. A pipe keeps no one waiting.
    """
    with FileIO(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise InvalidArgumentError(f"{path} is not a regular file")
        return read_at_most(file, limit, str(path))


@contextmanager
def open_directory(root: Path | str, name: str = "", *, follow: bool = True) -> Iterator[int]:
    """A descriptor of the directory ``name`` beneath ``root`` for a block. Errors as in :func:`open_beneath`."""
    with _walked(root, name, follow=follow) as (directory, last):
        if last is not None:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), name)
        yield directory


def list_beneath(root: Path | str, name: str = "", *, follow: bool = True) -> list[str]:
    """The sorted names in a directory beneath ``root``. Errors as in :func:`open_beneath`."""
    with open_directory(root, name, follow=follow) as directory:
        return sorted(os.listdir(directory))


def status_beneath(root: Path | str, name: str, *, follow: bool = True) -> os.stat_result:
    """What the file or directory is, at this moment: nothing to rely on later. Errors as in :func:`open_beneath`."""
    with _walked(root, name, follow=follow) as (directory, last):
        return os.fstat(directory) if last is None else os.stat(last, dir_fd=directory, follow_symlinks=False)


class TreeEntry(NamedTuple):
    """Something beneath a root: its name, with ``/``, its ``st_mode``, and its size in bytes."""

    name: str
    mode: int
    size: int


def walk_beneath(
    root: Path | str, *, follow: bool = False, skip: Callable[[str], bool] = lambda _name: False
) -> Iterator[TreeEntry]:
    """Everything beneath ``root``, sorted in each directory; a directory comes before what is in it.

    Args:
        root: A directory; may itself be a link.
        follow: Whether links are followed: what one leads to is yielded under the name of the link. Otherwise the link
            is yielded, with the mode of a link.
        skip: Whether the file or directory of this name is left out, with everything below.

    Raises:
        OSError: a directory cannot be read.
        UnsafePathError: directories are too deep in one another; a followed link leads out of ``root``, nowhere or in
            a circle.
    """
    return _below(root, "", follow, skip, frozenset())


def _below(
    root: Path | str, directory: str, follow: bool, skip: Callable[[str], bool], above: frozenset[tuple[int, int]]
) -> Iterator[TreeEntry]:
    # Nothing stays open while a directory below, or the caller, takes its time.
    with open_directory(root, directory, follow=follow) as fd:
        above |= {_identity(os.fstat(fd))}
        names = [f"{directory}/{entry}" if directory else entry for entry in sorted(os.listdir(fd))]
        found = [(name, os.stat(posixpath.basename(name), dir_fd=fd, follow_symlinks=False)) for name in names]
    for name, status in found:
        if skip(name):
            continue
        if follow and stat.S_ISLNK(status.st_mode):
            status = _behind_link(root, name, above)
        yield TreeEntry(name, status.st_mode, status.st_size)
        if stat.S_ISDIR(status.st_mode):
            yield from _below(root, name, follow, skip, above)


def _behind_link(root: Path | str, name: str, above: frozenset[tuple[int, int]]) -> os.stat_result:
    try:
        status = status_beneath(root, name)
    except OSError as error:
        if error.errno in _NOWHERE:
            raise UnsafePathError(f"{shown(name)} is a link that leads nowhere") from None
        raise
    if _identity(status) in above:
        raise UnsafePathError(f"{shown(name)} is a link that leads in a circle")
    return status


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def shown(text: str) -> str:
    """A name as messages have it: quoted, and not longer than a line or two."""
    return repr(text if len(text) <= _SHOWN else text[:_SHOWN] + "...")


@contextmanager
def _walked(root: Path | str, name: str, *, follow: bool) -> Iterator[tuple[int, str | None]]:
    """The directory in which ``name`` lies, and its name there that is not a link; None: it is that directory."""
    walk = _Walk(root, name, follow)
    try:
        yield walk.run()
    finally:
        walk.close()


class _Walk:
    """The way from a root to a name: the directories that are open, and the parts that are left."""

    def __init__(self, root: Path | str, name: str, follow: bool) -> None:
        self._root = root
        self._name = name
        self._follow = follow
        self._left = deque(relative_parts(name))
        self._links = 0
        self._open = [os.open(root, _DIRECTORY)]

    def run(self) -> tuple[int, str | None]:
        while self._left:
            part = self._left.popleft()
            if part == "..":
                self._up()
            elif part not in ("", "."):
                status = os.stat(part, dir_fd=self._open[-1], follow_symlinks=False)
                if stat.S_ISLNK(status.st_mode):
                    self._link(part)
                elif stat.S_ISDIR(status.st_mode):
                    check_depth(len(self._open), self._name)  # links may lead deeper than the name
                    self._open.append(os.open(part, _DIRECTORY | os.O_NOFOLLOW, dir_fd=self._open[-1]))
                elif self._left:
                    raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), self._name)
                else:
                    return self._open[-1], part
        return self._open[-1], None

    def close(self) -> None:
        for fd in self._open:
            os.close(fd)

    def _up(self) -> None:
        """``..``, which only a link can have: never asked of the system, so a moved directory leads nowhere else."""
        if len(self._open) == 1:
            raise self._leaves()
        os.close(self._open.pop())

    def _link(self, part: str) -> None:
        if not self._follow:
            raise UnsafePathError(f"{shown(self._name)}: {shown(part)} is a symbolic link, which is never followed")
        self._links += 1
        if self._links > _LINKS:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), self._name)
        target = os.readlink(part, dir_fd=self._open[-1])
        if target.startswith("/"):
            target = self._from_root(target)
        self._left.extendleft(reversed(target.split("/")))

    def _from_root(self, target: str) -> str:
        """An absolute link that names something beneath the root, from there on."""
        root = os.path.realpath(self._root).rstrip("/") + "/"
        if not f"{target}/".startswith(root):
            raise self._leaves()
        while len(self._open) > 1:
            os.close(self._open.pop())
        return target[len(root) :]

    def _leaves(self) -> UnsafePathError:
        return UnsafePathError(f"{shown(self._name)} is a link that leaves the model's directory")


def check_file(status: os.stat_result, directory: int, name: str) -> None:
    """Whether what was opened in ``directory`` is a file that may be read.

    Raises:
        IsADirectoryError: it is a directory.
        UnsafePathError: a special file, or a hard link that another user than the file's owner may have made.
    """
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    if not stat.S_ISREG(status.st_mode):
        raise UnsafePathError(f"{shown(name)} is neither a file nor a directory")
    # Who may write to a directory can give a name in it to a file that he may not read, where the system does not
    # prevent it. A second name that only the file's owner can have made is nothing to refuse: backups, package managers
    # and this project's cache make them.
    if status.st_nlink > 1 and _others_write(os.fstat(directory), status.st_uid):
        raise UnsafePathError(
            f"{shown(name)} has a second name (a hard link), which another user than its owner may have given it: copy "
            "it, or let only its owner write to its directory"
        )


def _others_write(directory: os.stat_result, owner: int) -> bool:
    if directory.st_uid != owner:
        return True
    return bool(directory.st_mode & (stat.S_IWGRP | stat.S_IWOTH)) and not _system_protects_links()


@cache
def _system_protects_links() -> bool:
    """Whether the system lets no one give a second name to a file that he may not read and write, as is usual."""
    try:
        return Path("/proc/sys/fs/protected_hardlinks").read_text().strip() == "1"
    except OSError:
        return False


def _check_text(text: str) -> None:
    if "\0" in text:
        raise UnsafePathError(f"{shown(text)} contains a NUL character")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise UnsafePathError(f"{shown(text)} cannot be a file name: it is not valid Unicode") from None
