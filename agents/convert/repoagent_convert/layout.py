"""A model's directory: its versions, and a new repository of all that is not replaced."""

import os
import shutil
from collections.abc import Collection
from pathlib import Path

from repoagent.api import InvalidArgumentError, UnsafePathError

__all__ = ["copy_others", "find_versions"]


def find_versions(root: Path) -> list[str]:
    """The version directories of ``root``, by number.

    Raises:
        InvalidArgumentError: there is none.
        UnsafePathError: one of them is a link.
    """
    versions = sorted((path.name for path in root.iterdir() if _is_version(path)), key=int)
    if not versions:
        raise InvalidArgumentError("the model has no version directory (1, 2, ...), so there is nothing to convert")
    for version in versions:
        if (root / version).is_symlink():
            raise UnsafePathError(f"{version} is a symbolic link, which is not followed")
    return versions


def _is_version(path: Path) -> bool:
    name = path.name
    return path.is_dir() and name.isascii() and name.isdigit() and not name.startswith("0")


def copy_others(root: Path, target: Path, leave_out: Collection[str], directory: str = "") -> int:
    """Copy what is in ``directory`` of ``root`` to ``target``, but the files and directories ``leave_out``.

    Empty directories are kept: the one of a version may be all there is of it. Returns the number of bytes.

    Raises:
        UnsafePathError: there is a link, or something that is neither file nor directory.
    """
    copied = 0
    with os.scandir(root / directory) as found:
        entries = sorted(found, key=lambda entry: entry.name)
    for entry in entries:
        path = f"{directory}/{entry.name}" if directory else entry.name
        if path in leave_out:
            continue
        if entry.is_dir(follow_symlinks=False):
            (target / path).mkdir(mode=0o700)
            copied += copy_others(root, target, leave_out, path)
        elif entry.is_file(follow_symlinks=False):
            shutil.copyfile(entry.path, target / path)
            copied += entry.stat().st_size
        else:
            raise UnsafePathError(f"{path} is a link or a special file, which is not copied")
    return copied
