"""File names that come from outside: made plain, shown, and opened without ever leaving the directory."""

import errno
import os
import stat
from io import FileIO
from pathlib import Path

from repoagent.api import InvalidArgumentError, UnsafePathError

__all__ = ["MAX_TEXT_BYTES", "open_inside", "plain_name", "read_inside", "show"]

MAX_TEXT_BYTES = 64 << 20
"""The largest digest file, listing or index that is read."""


def plain_name(name: str, source: str) -> str:
    """``name`` without a leading ``./``, if it surely names something below the directory it is relative to.

    Args:
        name: As written.
        source: Where it was written, for the message.

    Raises:
        UnsafePathError: empty, absolute, with NUL, or with ``.``, ``..`` or nothing between two slashes.
    """
    plain = name
    while plain.startswith("./"):
        plain = plain[2:]
    parts = plain.split("/")
    if "\0" in plain or any(part in ("", ".", "..") for part in parts):
        raise UnsafePathError(f"{source}: {show(name)!r} is not a plain relative path inside the model's directory")
    return plain


def show(name: str) -> str:
    """``name`` on one line and printable, whatever bytes it is made of."""
    text = name.encode("utf-8", "backslashreplace").decode("utf-8")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def open_inside(root: Path, name: str) -> FileIO:
    """Open the regular file ``name`` below ``root`` for unbuffered reading; close it.

    No link is followed at any step and a FIFO does not block, so what is read is a file of this very directory.

    Raises:
        OSError: it cannot be opened.
        UnsafePathError: a link, or a special file.
    """
    *parents, last = name.split("/")
    directory = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for parent in parents:
            directory = _step(directory, parent, name, os.O_DIRECTORY)
        file = _step(directory, last, name, os.O_NONBLOCK)
        directory = -1
    finally:
        if directory >= 0:
            os.close(directory)
    return _regular(file, name)


def _step(directory: int, part: str, name: str, flags: int) -> int:
    """Open ``part`` of ``directory``, and close ``directory`` if that worked."""
    if stat.S_ISLNK(os.stat(part, dir_fd=directory, follow_symlinks=False).st_mode):
        raise UnsafePathError(f"{show(name)}: {show(part)!r} is a symbolic link, which is never followed")
    opened = os.open(part, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=directory)
    os.close(directory)
    return opened


def _regular(file: int, name: str) -> FileIO:
    mode = os.fstat(file).st_mode
    if stat.S_ISREG(mode):
        return FileIO(file, "rb")
    os.close(file)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise UnsafePathError(f"{show(name)} is neither a file nor a directory")


def read_inside(root: Path, name: str, what: str) -> bytes:
    """The content of a small file below ``root``; ``what`` names its kind in the messages.

    Raises:
        InvalidArgumentError: it cannot be read, or is larger than ``MAX_TEXT_BYTES``.
        UnsafePathError: a link, or a special file.
    """
    try:
        with open_inside(root, name) as file:
            data = _read_at_most(file, MAX_TEXT_BYTES + 1)
    except OSError as error:
        raise InvalidArgumentError(f"{what} {show(name)} cannot be read: {error.strerror}") from error
    if len(data) > MAX_TEXT_BYTES:
        raise InvalidArgumentError(f"{what} {show(name)} is larger than {MAX_TEXT_BYTES >> 20} MiB")
    return data


def _read_at_most(file: FileIO, limit: int) -> bytes:
    pieces = []
    while limit > 0 and (piece := file.read(limit)):
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)
