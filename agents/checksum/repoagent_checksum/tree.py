"""What is in a directory: files, and all that a digest file cannot speak for."""

import os
from dataclasses import dataclass, field
from pathlib import Path

__all__ = ["Tree", "scan_tree"]


@dataclass(frozen=True, slots=True)
class Tree:
    """Paths relative to the directory, with ``/``. ``files`` maps each regular file to its size in bytes."""

    files: dict[str, int] = field(default_factory=dict)
    links: list[str] = field(default_factory=list)
    special: list[str] = field(default_factory=list)
    empty: list[str] = field(default_factory=list)
    """Directories with nothing in them."""


def scan_tree(root: Path) -> Tree:
    """Look at everything below ``root``. No link is followed.

    Raises:
        OSError: a directory cannot be read.
    """
    tree = Tree()
    pending = [""]
    while pending:
        directory = pending.pop()
        with os.scandir(root / directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
        if directory and not found:
            tree.empty.append(directory)
        for entry in found:
            path = f"{directory}/{entry.name}" if directory else entry.name
            if _sort_in(tree, path, entry):
                pending.append(path)
    return tree


def _sort_in(tree: Tree, path: str, entry: "os.DirEntry[str]") -> bool:
    """Note ``entry`` where it belongs; True if it is a directory to look into."""
    if entry.is_symlink():
        tree.links.append(path)
    elif entry.is_dir(follow_symlinks=False):
        return True
    elif entry.is_file(follow_symlinks=False):
        tree.files[path] = entry.stat(follow_symlinks=False).st_size
    else:
        tree.special.append(path)
    return False
