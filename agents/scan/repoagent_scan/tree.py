"""The files of a model."""

import stat
from collections.abc import Iterator
from pathlib import Path

from repoagent.api import UnsafePathError, list_beneath, status_beneath

__all__ = ["list_files"]


def list_files(root: Path) -> Iterator[tuple[str, bool]]:
    """The path of everything below ``root`` but directories, with ``/``, and whether it is a regular file.

    Links and special files are not: they could lead anywhere.
    """
    pending = [""]
    while pending:
        directory = pending.pop()
        for name in list_beneath(root, directory, follow=False):
            path = f"{directory}/{name}" if directory else name
            mode = _mode(root, path)
            if stat.S_ISDIR(mode):
                pending.append(path)
            else:
                yield path, stat.S_ISREG(mode)


def _mode(root: Path, path: str) -> int:
    try:
        return status_beneath(root, path, follow=False).st_mode
    except UnsafePathError:
        return stat.S_IFLNK
