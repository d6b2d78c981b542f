"""The files of a model: what to transform, what to copy, how large the result will be; and making it."""

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from repoagent.api import (
    AlreadyExistsError,
    InvalidArgumentError,
    UnavailableError,
    UnsafePathError,
    held_beneath,
    walk_beneath,
)
from repoagent_decrypt.files.errors import DamagedError, DecryptError
from repoagent_decrypt.files.positional import Hashers, Progress, Sizes, new_file, write_at

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


Keep = Callable[[str, Path, Sizes], object]
"""``(name, file, sizes)``: what is known of the source ``name`` and of the file that was made of it."""
Transform = Callable[[Path, Path, Progress], Sizes]
"""``(source, new target, progress)``: make one file of another."""
_STEP: Final = 16 << 20
_BLOCK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Totals:
    """What was done."""

    transformed: int
    copied: int
    bytes_read: int
    bytes_written: int


def build_tree(
    tree: Tree,
    target: Path,
    transform: Transform,
    progress: Progress,
    keep: Keep = lambda _name, _path, _sizes: None,
    reading: Sequence[str] = (),
) -> Totals:
    """Fill the existing, empty directory ``target``; every file is for the owner only.

    ``progress`` gets the bytes written so far and may raise to stop. The caller removes ``target`` if this raises.
    ``keep`` gets the digests ``reading`` of what was read, too.

    Raises:
        InvalidArgumentError: a file is damaged, of no known format, or for another key; the message begins with its
            name.
        UnavailableError: the system does not let a file be read or written, or there is no room.
    """
    for name in tree.directories:
        (target / name).mkdir(mode=0o700)
    read = written = 0
    for item in tree.items:
        sizes = _build(tree, item, target / item.target, transform, _shifted(progress, written), reading)
        keep(item.name, target / item.target, sizes)
        read += sizes.read
        written += sizes.written
        progress(written)
    chosen = len(tree.chosen)
    return Totals(chosen, len(tree.items) - chosen, read, written)


def copy_file(source: Path, target: Path, progress: Progress, reading: Sequence[str] = ()) -> Sizes:
    """Copy the content of ``source`` into the new file ``target``."""
    done = 0
    with source.open("rb", buffering=0) as stream, new_file(target) as fd:
        if reading:
            digests = _copy_hashed(stream.fileno(), fd, progress, reading)
            status = os.fstat(fd)
            return Sizes(status.st_size, status.st_size, status, digests, digests)
        while count := os.sendfile(fd, stream.fileno(), done, _STEP):
            done += count
            progress(done)
    return Sizes(done, done)


def _copy_hashed(source: int, target: int, progress: Progress, reading: Sequence[str]) -> dict[str, str]:
    hashers, block, done = Hashers(reading), memoryview(bytearray(_BLOCK)), 0
    while count := os.readv(source, [block]):
        hashers.update(block[:count])
        write_at(target, block[:count], done)
        done += count
        progress(done)
    return hashers.digests()


def _transformed(source: Path, target: Path, transform: Transform, progress: Progress, reading: Sequence[str]) -> Sizes:
    sizes = transform(source, target, progress)
    if not reading or sizes.read_digests:
        return sizes
    # A format that is not read in order, or by a library: once more, of a copy that was hashed. It lies where the
    # plaintext does, in memory, and without a name.

    def bounded(done: int) -> None:
        if done > sizes.read:
            raise DamagedError("the file became longer while it was read")

    target.unlink()
    hidden = os.open(target.parent, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    with open(hidden, "r+b", buffering=0) as copy, source.open("rb", 0) as stream:
        digests = _copy_hashed(stream.fileno(), copy.fileno(), bounded, reading)
        again = transform(Path(f"/proc/self/fd/{copy.fileno()}"), target, progress)
    return replace(again, read_digests=digests)


def _shifted(progress: Progress, start: int) -> Progress:
    return lambda done: progress(start + done)


def _build(
    tree: Tree, item: Item, target: Path, transform: Transform, progress: Progress, reading: Sequence[str]
) -> Sizes:
    try:
        with tree.held(item) as source:
            if item.chosen:
                return _transformed(source, target, transform, progress, reading)
            return copy_file(source, target, progress, reading)
    except DecryptError as error:
        raise InvalidArgumentError(f"{item.name}: {error}") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UnavailableError(f"{item.name}: no room left for it where it is written") from error
        raise UnavailableError(f"{item.name}: {error.strerror}") from error
