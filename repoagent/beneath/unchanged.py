"""A directory that a library reads by its path: what was checked in it is what was read.

A name cannot become a link without a change of the directory that holds it, and a directory keeps the time of its last
change, which its owner cannot set. So the tree is looked at before and after: if no directory changed, whatever was
opened by name in between was one of the files that were checked.
"""

import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from repoagent.beneath.opening import check_file, open_directory, relative_parts, shown, status_beneath
from repoagent.errors import UnavailableError

_CLOCK_STEP_NS: Final = 20_000_000
"""Two changes within one step of the kernel's clock can have one time: as long as that a change counts as recent."""

_SECOND_NS: Final = 1_000_000_000
_COARSE_CLOCK: Final = 5
"""``CLOCK_REALTIME_COARSE``, by which the kernel sets the times of files."""

FileState = tuple[int, int, int, int, int]
"""A file as it was at some time: device, number, size, and the times of the last changes of content and of status."""

_Seen = tuple[str, int, int, int]
"""A directory: its path, device, number, and time of the last change."""


@contextmanager
def unchanged(root: Path | str, name: str = "", *, follow: bool = True) -> Iterator[None]:
    """Let the block read the directory ``name`` beneath ``root``, and all below it, by their paths.

    What the block made of them counts only if it is left without an error.

    Args:
        root: A directory; may itself be a link.
        name: Relative, with ``/``.
        follow: Whether there may be links, which must stay beneath ``root``.

    Raises:
        UnsafePathError: a link that leaves ``root``, or any link if none is followed, a special file, or another
            user's file under a second name.
        UnavailableError: a directory changed while the block ran.
        OSError: a directory cannot be read.
    """
    watched = Watched(root, name, follow=follow)
    yield
    watched.check()


class Watched:
    """The two halves of :func:`unchanged`, for who cannot put a block between them: making one, and :meth:`check`."""

    def __init__(self, root: Path | str, name: str = "", *, follow: bool = True) -> None:
        self._where = (root, name, follow)
        self._before = _settled(root, name, follow)

    def check(self) -> None:
        """Raise ``UnavailableError`` if a directory changed since."""
        if _look(*self._where) != self._before:
            what = shown(self._where[1]) if self._where[1] else "the directory"
            raise UnavailableError(f"{what} of the model changed while it was read; load it again")


def file_state(status: os.stat_result) -> FileState:
    """The state of a file; one that was changed since has another, unless both changes fell into one clock step."""
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def wait_for_clock(changed_ns: int) -> bool:
    """Wait until a change has another time than ``changed_ns``, that of the last change of a file.

    Returns whether that is so after two clock steps: not if the clock was set back, or the filesystem counts seconds.
    """
    step = 0 if changed_ns % _SECOND_NS else _SECOND_NS
    end = time.monotonic_ns() + 2 * _CLOCK_STEP_NS
    while time.clock_gettime_ns(_COARSE_CLOCK) <= changed_ns + step:
        if step or time.monotonic_ns() > end:
            return False
        time.sleep(0.001)
    return True


def _settled(root: Path | str, name: str, follow: bool) -> list[_Seen]:
    seen = _look(root, name, follow)
    recent = max(changed for *_, changed in seen) + _CLOCK_STEP_NS - time.time_ns()
    if not 0 < recent <= _CLOCK_STEP_NS:
        return seen
    time.sleep(recent / 1e9)
    return _look(root, name, follow)


def _look(root: Path | str, name: str, follow: bool) -> list[_Seen]:
    """Every directory that a path to something below ``name`` passes through, each checked."""
    parts = relative_parts(name)
    seen: list[_Seen] = []
    linked = False
    for count, part in enumerate(parts):
        with open_directory(root, "/".join(parts[:count]), follow=follow) as fd:
            seen.append(_identity("/".join(parts[:count]), fd))
            linked |= stat.S_ISLNK(os.stat(part, dir_fd=fd, follow_symlinks=False).st_mode)
    linked |= _look_below(root, "/".join(parts), follow, seen)
    if linked and parts:  # a link may pass through any directory beneath the root
        return _look(root, "", follow)
    return seen


def _look_below(root: Path | str, path: str, follow: bool, seen: list[_Seen]) -> bool:
    """Add ``path`` and all directories in it; whether there was a link."""
    linked = False
    with open_directory(root, path, follow=follow) as fd:
        seen.append(_identity(path, fd))
        for entry in sorted(os.listdir(fd)):
            below = f"{path}/{entry}" if path else entry
            status = os.stat(entry, dir_fd=fd, follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                linked |= _look_below(root, below, follow, seen)
            elif stat.S_ISLNK(status.st_mode):
                linked = True
                with suppress(FileNotFoundError):  # what leads nowhere cannot be read
                    status_beneath(root, below, follow=follow)
            else:
                check_file(status, fd, below)
    return linked


def _identity(path: str, fd: int) -> _Seen:
    status = os.fstat(fd)
    return path, status.st_dev, status.st_ino, status.st_ctime_ns
