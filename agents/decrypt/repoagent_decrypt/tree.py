"""The files of a model: what to transform, what to copy, and how large the result will be."""

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.api import AlreadyExistsError, UnsafePathError

__all__ = ["Item", "Tree", "scan_tree"]

_PAGE: Final = 4096


@dataclass(frozen=True, slots=True)
class Item:
    """One file. ``chosen`` ones are transformed into ``target``, the others copied; ``size`` is that of the result."""

    source: Path
    name: str
    target: str
    chosen: bool
    size: int


@dataclass(frozen=True, slots=True)
class Tree:
    """``directories`` with parents first; ``items`` sorted by name."""

    directories: tuple[str, ...]
    items: tuple[Item, ...]

    @property
    def size(self) -> int:
        """Bytes of all results."""
        return sum(item.size for item in self.items)

    @property
    def room(self) -> int:
        """Bytes they need on a filesystem that gives out whole pages, directories included."""
        pages = sum(-(-item.size // _PAGE) for item in self.items)
        return (pages + len(self.directories) + 1) * _PAGE

    @property
    def chosen(self) -> list[Item]:
        """Those to transform."""
        return [item for item in self.items if item.chosen]


def scan_tree(
    root: Path, choose: Callable[[str], bool], rename: Callable[[str], str], size: Callable[[Path, str], int]
) -> Tree:
    """Walk ``root``.

    Args:
        root: A directory; may itself be a link.
        choose: Whether the file of this relative name is to be transformed.
        rename: The name of its result.
        size: The size of its result, given path and name.

    Raises:
        UnsafePathError: a link that leads out of ``root`` or to a directory, or a file that is none (a device, a
            socket). A link to a file inside is taken for that file.
        AlreadyExistsError: two results would have the same name.
    """
    real = root.resolve(strict=True)
    directories: list[str] = []
    items: list[Item] = []
    for name, path, is_directory in _walk(real, ""):
        if is_directory:
            directories.append(name)
            continue
        plain = _regular_size(path, name, real)
        chosen = choose(name)
        items.append(Item(path, name, rename(name) if chosen else name, chosen, size(path, name) if chosen else plain))
    _check_clashes(items, directories)
    return Tree(tuple(directories), tuple(items))


def _walk(directory: Path, prefix: str) -> Iterator[tuple[str, Path, bool]]:
    with os.scandir(directory) as listing:
        entries = sorted(listing, key=lambda entry: entry.name)
    for entry in entries:
        name = prefix + entry.name
        is_directory = entry.is_dir(follow_symlinks=False)
        yield name, Path(entry.path), is_directory
        if is_directory:
            yield from _walk(Path(entry.path), f"{name}/")


def _regular_size(path: Path, name: str, root: Path) -> int:
    try:
        real = path.resolve(strict=True)
    except (OSError, RuntimeError):
        raise UnsafePathError(f"'{name}' is a link that leads nowhere") from None
    status = real.stat()
    if not real.is_relative_to(root):
        raise UnsafePathError(f"'{name}' is a link that leads out of the model's directory")
    if not stat.S_ISREG(status.st_mode):
        what = "a link to a directory" if stat.S_ISDIR(status.st_mode) else "neither a file nor a directory"
        raise UnsafePathError(f"'{name}' is {what}; a model is made of plain files")
    return status.st_size


def _check_clashes(items: list[Item], directories: list[str]) -> None:
    seen = dict.fromkeys(directories, "a directory of that name")
    for item in items:
        if item.target in seen:
            raise AlreadyExistsError(f"'{item.name}' would become '{item.target}', but there is {seen[item.target]}")
        seen[item.target] = f"'{item.name}'"
