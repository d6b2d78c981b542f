"""The files that the model has itself, beside those that are fetched."""

import stat
from contextlib import suppress
from pathlib import Path

from repoagent.api import UnsafePathError, list_beneath, open_beneath, status_beneath

__all__ = ["own_files"]


def own_files(root: Path) -> list[str]:
    """The files of the model itself, and links to files in it."""
    found: list[str] = []
    pending = [""]
    while pending:
        directory = pending.pop()
        for name in list_beneath(root, directory, follow=False):
            path = f"{directory}/{name}" if directory else name
            try:
                mode = status_beneath(root, path, follow=False).st_mode
            except UnsafePathError:
                found += _followed(root, path)
            else:
                if stat.S_ISDIR(mode):
                    pending.append(path)
                elif stat.S_ISREG(mode):
                    found.append(path)
    return sorted(found)


def _followed(root: Path, link: str) -> list[str]:
    with suppress(FileNotFoundError, IsADirectoryError), open_beneath(root, link):
        return [link]
    return []
