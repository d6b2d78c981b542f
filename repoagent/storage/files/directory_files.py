"""A model's files in a directory of this machine."""

import builtins
import errno
import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

from repoagent.beneath import Watched, list_beneath, open_beneath, status_beneath
from repoagent.errors import NotFoundError, UnavailableError
from repoagent.storage.paths.names import join_inside

__all__ = ["DirectoryFiles"]

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP})


class DirectoryFiles:
    """The :class:`ModelFiles` of a directory, which may be read-only. Links stay inside it."""

    def __init__(self, root: Path, *, fleeting: bool = False) -> None:
        """``root`` is the model's directory; it stays the caller's."""
        self.root = root
        self.fleeting = fleeting

    def bytes(self, path: str) -> builtins.bytes:
        """The whole content."""
        with _faults(path), open_beneath(self.root, path) as file:
            return file.readall()

    def open(self, path: str) -> BinaryIO:
        """A binary reader; close it."""
        with _faults(path):
            return io.BufferedReader(open_beneath(self.root, path))

    @contextmanager
    def reading(self, path: str = "") -> Iterator[Path]:
        """The path itself, and the certainty that it led nowhere else."""
        with _faults(path):
            watched = Watched(self.root, path)
        yield self.local_path(path)
        with _faults(path):
            watched.check()

    def local_path(self, path: str = "") -> Path:
        """The path itself; its owner may change what it leads to."""
        real = join_inside(self.root, path)
        if not os.path.exists(real):
            raise NotFoundError(f"the model has no '{path}'")
        return real

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        try:
            status_beneath(self.root, path)
        except OSError:
            return False
        return True

    def names(self, path: str = "") -> list[str]:
        """The sorted names in a directory; empty if it is none."""
        try:
            return list_beneath(self.root, path)
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise

    def directories(self) -> list[str]:
        """The sorted names of the directories at the top."""
        return [name for name in self.names() if os.path.isdir(os.path.join(self.root, name))]


@contextmanager
def _faults(path: str) -> Iterator[None]:
    # The message has the path in the model only: where plaintext lies is no one's business.
    try:
        yield
    except OSError as error:
        if error.errno in _ABSENT:
            raise NotFoundError(f"the model has no file '{path}'") from error
        raise UnavailableError(f"cannot read '{path}' of the model: {error.strerror}") from error
