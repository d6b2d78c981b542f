"""Putting a kept result into the repository of a load."""

import shutil
from pathlib import Path

from repoagent.errors import InvalidArgumentError, UnsafePathError

__all__ = ["link_or_copy", "move", "refuse_existing", "refuse_special"]


def refuse_special(directory: Path) -> None:
    """Raise if a converter left anything but plain files and directories.

    Raises:
        UnsafePathError: so it did; reading it could lead elsewhere, or never end.
    """
    for path in directory.rglob("*"):
        if path.is_symlink() or not (path.is_dir() or path.is_file()):
            raise UnsafePathError(f"the converter made {path.name}, which is a link or a special file")


def refuse_existing(target: Path, names: tuple[str, ...], label: str) -> None:
    """Raise if one of the ``names`` is in ``target`` already.

    Raises:
        InvalidArgumentError: so it is; ``label`` says what would be converted.
    """
    for name in names:
        if (target / name).exists() or (target / name).is_symlink():
            place = f"{target.name}/{name}"
            raise InvalidArgumentError(f"{label} would be converted into {place}, but the model has such a file")


def link_or_copy(source: Path, target: Path) -> int:
    """Make the files of ``source`` appear in ``target``; return the number of bytes that had to be written.

    A hard link keeps the bytes even when the cache lets them go, and costs nothing; across filesystems it is a copy.
    """
    written = 0
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(exist_ok=True)
            continue
        try:
            place.hardlink_to(path)
        except FileExistsError:
            refuse_existing(place.parent, (place.name,), place.name)
        except OSError:
            shutil.copyfile(path, place)
            written += path.stat().st_size
    return written


def move(source: Path, target: Path) -> None:
    """Move the files of ``source``, which is on the same filesystem, into ``target``. What is left is empty.

    Not by links: ``source`` may be wiped, and with it what its files share.
    """
    for path in sorted(source.rglob("*")):
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(exist_ok=True)
            continue
        refuse_existing(place.parent, (place.name,), place.name)
        path.rename(place)
