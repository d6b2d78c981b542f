"""Putting a kept result into the repository of a load."""

import errno
import mmap
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from repoagent.errors import InvalidArgumentError, UnsafePathError
from repoagent.onnx_files.external_files import external_files, fields, parts

_DOMAIN: Final = 7
_DOMAINS: Final = frozenset({b"", b"ai.onnx", b"ai.onnx.ml"})


def refuse_special(directory: Path) -> None:
    """Raise ``UnsafePathError`` if a converter left anything but plain files and directories with printable names.

    Reading it could lead elsewhere, or never end. A file with a second name is refused as well: changed or wiped there,
    it would be changed here.
    """
    for path, status in _entries(directory):
        name = path.name
        if not name.isprintable():
            raise UnsafePathError(f"the converter made {name!a}, whose name is not plain text")
        plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if not (plain or stat.S_ISDIR(status.st_mode)):
            raise UnsafePathError(f"the converter made {name}, which is a link or a special file")


def refuse_foreign(directory: Path, output: str, kind: str, label: str) -> None:
    """Raise if what foreign code has made is more than one file, or one of the format ``kind`` that names code or files
    outside of itself.

    Raises:
        UnsafePathError: so it does; ``label`` states what was converted.
        InvalidArgumentError: it is not of that format.
    """
    names = sorted(path.relative_to(directory).as_posix() for path, _ in _entries(directory))
    if names != [output]:
        raise UnsafePathError(f"{label}: the conversion made {', '.join(names) or 'nothing'}, but not {output} alone")
    if kind != "onnx":
        return
    path = directory / output
    if locations := external_files(path, output):
        raise UnsafePathError(f"{label}: the result names other files: {min(locations)!a}")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for part, span in parts(data):
            if part == "Function":
                raise UnsafePathError(f"{label}: the result has functions, whose operators may be of others")
            domains = (data[slice(*place)] for number, place in fields(data, span) if number == _DOMAIN)
            if part == "Node" and (foreign := {*domains} - _DOMAINS):
                raise UnsafePathError(
                    f"{label}: the result has operators of others: {min(foreign)[:200].decode(errors='replace')!a}"
                )


def _entries(directory: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Everything below ``directory``, no link followed; ``UnsafePathError`` if a path is too long for the system."""
    pending = [directory]
    while pending:
        try:
            with os.scandir(pending.pop()) as found:
                entries = [(Path(one.path), one.stat(follow_symlinks=False)) for one in found]
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                raise
            raise UnsafePathError("the converter made directories that are too deep to be read") from error
        yield from entries
        pending += [path for path, status in entries if stat.S_ISDIR(status.st_mode)]


def refuse_existing(target: Path, names: tuple[str, ...], label: str) -> None:
    """Raise ``InvalidArgumentError`` if one of the ``names`` is in ``target`` already; ``label`` is for the message."""
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
            place.mkdir(mode=0o700, exist_ok=True)
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
            place.mkdir(mode=0o700, exist_ok=True)
            continue
        refuse_existing(place.parent, (place.name,), place.name)
        path.rename(place)
