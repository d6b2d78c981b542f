"""How much room a place has, less what this process promised already."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

from repoagent.errors import UnavailableError
from repoagent.storage.paths.trees import tree_size


def free_bytes(path: Path) -> int | None:
    """The bytes that an unprivileged user may still write; None where the filesystem knows no limit (ramfs)."""
    status = os.statvfs(path)
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def check_space(path: Path, needed: int, *, what: str, taken: int = 0, free: int | None = None) -> None:
    """Refuse what will not fit.

    Raises:
        UnavailableError: ``path`` has less than ``needed`` bytes free, ``taken`` subtracted.
    """
    available = None if free is None else max(0, free - taken)
    if available is not None and available < needed:
        promised = f" ({taken} more are reserved by other loads)" if taken else ""
        raise UnavailableError(f"{what} needs {needed} bytes and {path} has {available} bytes free{promised}")


class DiskSpace:
    """The reservations of this process in one place. They are promises to each other, not to other processes."""

    def __init__(self, path: Path, *, free: Callable[[Path], int | None] = free_bytes) -> None:
        self._path = path
        self._free = free
        self._lock = threading.Lock()
        self._reserved: dict[Path, int] = {}

    def reserve(self, directory: Path, size: int, *, what: str) -> None:
        """Promise ``size`` bytes to ``directory``, which may hold some of them already.

        Raises:
            UnavailableError: there is less than that.
        """
        with self._lock:
            taken = sum(self._outstanding(other) for other in self._reserved if other != directory)
            check_space(self._path, size, what=what, taken=taken, free=self._free(self._path))
            self._reserved[directory] = size

    def release(self, directory: Path) -> None:
        """Forget the promise; fine if there is none."""
        with self._lock:
            self._reserved.pop(directory, None)

    def _outstanding(self, directory: Path) -> int:
        return max(0, self._reserved[directory] - tree_size(directory))
