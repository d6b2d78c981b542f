"""Make a new directory from a tree: transform the chosen files, copy the others."""

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.api import InvalidArgumentError, UnavailableError
from repoagent_decrypt.files.errors import DecryptError
from repoagent_decrypt.files.new_file import Sizes, new_file
from repoagent_decrypt.files.positional import Progress
from repoagent_decrypt.tree import Item, Tree

__all__ = ["Totals", "Transform", "build_tree", "copy_file"]

Transform = Callable[[Path, Path, Progress], Sizes]
"""``(source, new target, progress)``: make one file of another."""
_STEP: Final = 16 << 20


@dataclass(frozen=True, slots=True)
class Totals:
    """What was done."""

    transformed: int
    copied: int
    bytes_read: int
    bytes_written: int


def build_tree(tree: Tree, target: Path, transform: Transform, progress: Progress) -> Totals:
    """Fill the existing, empty directory ``target``; every file is for the owner only.

    ``progress`` gets the bytes written so far and may raise to stop. Whoever made ``target`` removes it if this raises.

    Raises:
        InvalidArgumentError: a file is damaged, of no known format, or for another key; the message begins with its
            name.
        UnavailableError: the system does not let a file be read or written, or there is no room.
    """
    for name in tree.directories:
        (target / name).mkdir(mode=0o700)
    read = written = 0
    for item in tree.items:
        sizes = _build(tree, item, target / item.target, transform, _shifted(progress, written))
        read += sizes.read
        written += sizes.written
        progress(written)
    chosen = len(tree.chosen)
    return Totals(chosen, len(tree.items) - chosen, read, written)


def copy_file(source: Path, target: Path, progress: Progress) -> Sizes:
    """Copy the content of ``source`` into the new file ``target``."""
    done = 0
    with source.open("rb", buffering=0) as stream, new_file(target) as fd:
        while count := os.sendfile(fd, stream.fileno(), done, _STEP):
            done += count
            progress(done)
    return Sizes(done, done)


def _shifted(progress: Progress, start: int) -> Progress:
    return lambda done: progress(start + done)


def _build(tree: Tree, item: Item, target: Path, transform: Transform, progress: Progress) -> Sizes:
    try:
        with tree.held(item) as source:
            return (transform if item.chosen else copy_file)(source, target, progress)
    except DecryptError as error:
        raise InvalidArgumentError(f"{item.name}: {error}") from error
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise UnavailableError(f"{item.name}: no room left for it where it is written") from error
        raise UnavailableError(f"{item.name}: {error.strerror}") from error
