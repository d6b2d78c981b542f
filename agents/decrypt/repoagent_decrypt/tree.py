"""The files of a model: what to transform, what to copy, and how large the result will be."""

import errno
import stat
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.api import AlreadyExistsError, UnsafePathError, held_beneath, walk_beneath

__all__ = ["Item", "Tree", "scan_tree"]

_PAGE: Final = 4096
_NOWHERE: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ELOOP})


@dataclass(frozen=True, slots=True)
class Item:
    """One file. ``chosen`` ones are transformed into ``target``, the others copied; ``size`` is that of the result."""

    name: str
    target: str
    chosen: bool
    size: int
    mode: int
    """The permissions of the source."""


@dataclass(frozen=True, slots=True)
class Tree:
    """``directories`` with parents first; ``items`` sorted by name."""

    root: Path
    directories: tuple[str, ...]
    items: tuple[Item, ...]

    def held(self, item: Item) -> AbstractContextManager[Path]:
        """A path for the file of ``item``, for a block: of this file beneath the root, whatever became of its name."""
        return held_beneath(self.root, item.name)

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
        size: The size of its result, given a path that leads to the file during the call, and its name.

    Raises:
        UnsafePathError: a link that leads out of ``root`` or to a directory, or a file that is none (a device, a
            socket). A link to a file inside is taken for that file.
        AlreadyExistsError: two results would have the same name.
    """
    directories: list[str] = []
    items: list[Item] = []
    for name, mode, _ in walk_beneath(root):
        if stat.S_ISDIR(mode):
            directories.append(name)
            continue
        with _held(root, name) as path:
            status = path.stat()
            chosen = choose(name)
            target, made = (rename(name), size(path, name)) if chosen else (name, status.st_size)
        items.append(Item(name, target, chosen, made, stat.S_IMODE(status.st_mode)))
    _check_clashes(items, directories)
    return Tree(root, tuple(directories), tuple(items))


@contextmanager
def _held(root: Path, name: str) -> Iterator[Path]:
    with ExitStack() as stack:
        try:
            path = stack.enter_context(held_beneath(root, name))
        except IsADirectoryError:
            raise UnsafePathError(f"'{name}' is a link to a directory; a model is made of plain files") from None
        except OSError as error:
            if error.errno in _NOWHERE:
                raise UnsafePathError(f"'{name}' is a link that leads nowhere") from None
            raise
        yield path


def _check_clashes(items: list[Item], directories: list[str]) -> None:
    seen = dict.fromkeys(directories, "a directory of that name")
    for item in items:
        if item.target in seen:
            raise AlreadyExistsError(f"'{item.name}' would become '{item.target}', but there is {seen[item.target]}")
        seen[item.target] = f"'{item.name}'"
