"""The files of a model, as the specification enumerates them (sections 6.1, 6.2 and 8.4)."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent_verify.errors import VerificationError
from repoagent_verify.manifest import DEFAULT_IGNORED

__all__ = ["File", "Ignored", "list_files"]

_DEEPEST: Final = 128
"""Directories in one another, as everywhere in the server: the walk is recursive."""


@dataclass(frozen=True, slots=True)
class File:
    """A regular file: its ``path`` below the root with ``/``, and its size in bytes."""

    path: str
    size: int


class Ignored:
    """Paths that a signature does not cover: a file or directory is ignored with everything below it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = frozenset(path.strip("/") for path in paths)

    def covers(self, path: str) -> bool:
        """Whether ``path`` is one of the paths, or below one."""
        parts = path.split("/")
        return any("/".join(parts[:count]) in self._paths for count in range(1, len(parts) + 1))

    @classmethod
    def by_default(cls, paths: Iterable[str] = ()) -> "Ignored":
        """``paths`` and those that the specification ignores."""
        return cls((*DEFAULT_IGNORED, *paths))


def list_files(root: Path, ignored: Ignored, *, allow_symlinks: bool) -> list[File]:
    """Every regular file below ``root`` that is not ignored, sorted by its path.

    Links are followed if ``allow_symlinks``, and only to files and directories inside ``root``.

    Raises:
        VerificationError: a link where none is allowed or one that leads out of the model or in a circle, a special
            file, a name that is not UTF-8.
    """
    base = os.path.realpath(root)
    return sorted(_walk(base, "", ignored, allow_symlinks, (base,)), key=lambda file: file.path)


def _walk(base: str, relative: str, ignored: Ignored, links: bool, above: tuple[str, ...]) -> Iterator[File]:
    with os.scandir(os.path.join(base, relative)) as entries:
        listed = list(entries)
    for entry in listed:
        path = f"{relative}/{entry.name}" if relative else entry.name
        if ignored.covers(path):
            continue
        _check_name(path)
        if entry.is_symlink():
            _check_link(base, path, links, above)
        mode = entry.stat().st_mode
        if stat.S_ISDIR(mode):
            if len(above) > _DEEPEST:
                raise VerificationError(f"{path[:200]} has more than {_DEEPEST} directories in one another")
            real = os.path.realpath(entry.path)
            yield from _walk(base, path, ignored, links, (*above, real))
        elif stat.S_ISREG(mode):
            yield File(path, entry.stat().st_size)
        else:
            raise VerificationError(f"{path} is a special file, which no signature covers")


def _check_name(path: str) -> None:
    try:
        path.encode()
    except UnicodeEncodeError:
        raise VerificationError(f"{path!r} is a name that is not valid UTF-8") from None


def _check_link(base: str, path: str, links: bool, above: tuple[str, ...]) -> None:
    if not links:
        raise VerificationError(f"{path} is a symbolic link, and the signature allows none")
    target = os.path.realpath(os.path.join(base, path))
    if target != base and not target.startswith(base + os.sep):
        raise VerificationError(f"{path} is a symbolic link that leads out of the model")
    if target in above:
        raise VerificationError(f"{path} is a symbolic link that leads in a circle")
    if not os.path.exists(target):
        raise VerificationError(f"{path} is a symbolic link that leads nowhere")
