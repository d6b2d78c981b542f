"""A link that leads to the model at each start, for servers whose caches depend on the path."""

import fcntl
import os
import re
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from repoagent.errors import AlreadyExistsError, UnavailableError
from repoagent.storage.workspaces.private import check_parents

_OURS: Final = re.compile(r"(.*/[0-9]+-[0-9a-f]{16})/[0-9]+/")
"""What each path of a private directory begins with: the directory of a process, a load."""
_LOCK_SECONDS: Final = 5.0
_PAUSE_SECONDS: Final = 0.05


@contextmanager
def stable_link(path: Path, place: Path) -> Iterator[None]:
    """Let ``path`` lead to ``place`` for a block.

    A link that a killed process left there is replaced.

    Raises:
        AlreadyExistsError: something else is there, or the link of a process whose command still runs.
        InvalidArgumentError: another user can put something else there.
        UnavailableError: it cannot be made.
    """
    check_parents(path, purpose="link to the model")
    try:
        fd = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise UnavailableError(f"cannot make the link {path}: {error.strerror}") from error
    try:
        _make(path, place, fd)
        try:
            yield
        finally:
            with suppress(OSError):  # no lock: no one replaces a link whose target is there
                if os.readlink(path.name, dir_fd=fd) == str(place):
                    os.unlink(path.name, dir_fd=fd)
    finally:
        os.close(fd)


def _make(path: Path, place: Path, fd: int) -> None:
    try:
        with _locked(fd):
            _remove_a_dead_one(path, fd)
            os.symlink(place, path.name, dir_fd=fd)
    except BlockingIOError:
        raise UnavailableError(f"cannot make the link {path}: another process has locked {path.parent}") from None
    except FileExistsError:
        raise AlreadyExistsError(
            f"{path} is there already, and is not a link that a killed run left; remove it, or name another path"
        ) from None
    except OSError as error:
        raise UnavailableError(f"cannot make the link {path}: {error.strerror}") from error


def _remove_a_dead_one(path: Path, fd: int) -> None:
    try:
        owner, target = os.stat(path.name, dir_fd=fd, follow_symlinks=False).st_uid, os.readlink(path.name, dir_fd=fd)
    except OSError:  # nothing is there, or no link
        return
    # The files may have gone before the process (--remove-when-ready), whose command then has the link still.
    if owner == os.geteuid() and (ours := _OURS.match(target)) and not os.path.exists(ours[1]):
        os.unlink(path.name, dir_fd=fd)


@contextmanager
def _locked(fd: int) -> Iterator[None]:
    """Of two processes that find a dead link, one replaces it; the other sees the new one.

    Any process that reads the directory can lock it, forever: the wait has an end.
    """
    end = time.monotonic() + _LOCK_SECONDS
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            break
        except BlockingIOError:
            if time.monotonic() > end:
                raise
            time.sleep(_PAUSE_SECONDS)
    try:
        yield
    finally:
        fcntl.flock(fd, fcntl.LOCK_UN)
