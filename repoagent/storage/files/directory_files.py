"""A model's files in a directory of this machine."""

import builtins
import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from repoagent.errors import NotFoundError, UnavailableError
from repoagent.storage.paths.paths import join_inside

__all__ = ["DirectoryFiles"]

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP})


class DirectoryFiles:
    """The :class:`ModelFiles` of a directory, which may be read-only. Links stay inside it."""

    def __init__(self, root: Path) -> None:
        """``root`` is the model's directory; it stays the caller's."""
        self.root = root

    def bytes(self, path: str) -> builtins.bytes:
        """The whole content."""
        with _faults(path):
            return join_inside(self.root, path).read_bytes()

    def open(self, path: str) -> BinaryIO:
        """A binary reader; close it."""
        with _faults(path):
            return join_inside(self.root, path).open("rb")

    def local_path(self, path: str = "") -> Path:
        """The path itself."""
        real = join_inside(self.root, path)
        if not os.path.exists(real):
            raise NotFoundError(f"the model has no '{path}'")
        return real

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return os.path.exists(join_inside(self.root, path))

    def names(self, path: str = "") -> list[str]:
        """The sorted names in a directory; empty if it is none."""
        real = join_inside(self.root, path)
        return sorted(os.listdir(real)) if os.path.isdir(real) else []

    def directories(self) -> list[str]:
        """The sorted names of the directories at the top."""
        return [name for name in self.names() if os.path.isdir(os.path.join(self.root, name))]


@contextmanager
def _faults(path: str) -> Iterator[None]:
    # The message has the path in the model only: where plaintext lies is nobody's business.
    try:
        yield
    except OSError as error:
        if error.errno in _ABSENT:
            raise NotFoundError(f"the model has no file '{path}'") from error
        raise UnavailableError(f"cannot read '{path}' of the model: {error.strerror}") from error
