"""The final repository of a model as a backend sees it."""

import builtins
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO, Protocol

from repoagent.storage.files.directory_files import DirectoryFiles
from repoagent.storage.files.memory_files import MemoryFiles
from repoagent.storage.files.source_files import SourceFiles

__all__ = ["DirectoryFiles", "MemoryFiles", "ModelFiles", "SourceFiles"]


class ModelFiles(Protocol):
    """Read access to one model's files. Paths are relative to the model's directory, with ``/``.

    Every method raises ``NotFoundError`` for a file that is not there and ``UnsafePathError`` for a path that would
    leave the model's directory.
    """

    @property
    def fleeting(self) -> bool:
        """Whether they are plaintext in memory, which goes as soon as no loaded version reads it any more."""

    def bytes(self, path: str) -> builtins.bytes:
        """The whole content."""

    def open(self, path: str) -> BinaryIO:
        """A binary reader; close it."""

    def local_path(self, path: str = "") -> Path:
        """A real path of the file or directory, valid while the model is loaded.

        For a model handed over in memory this is where plaintext would have to be written; it lands on tmpfs.
        """

    def reading(self, path: str = "") -> AbstractContextManager[Path]:
        """:meth:`local_path` for a block that opens what lies there by its paths: nothing outside is read.

        Links to the outside and special files are refused before it, and a change of the names after it: what was
        made in the block is then dropped.

        Raises:
            UnsafePathError: a link that leaves the model's directory, or a special file.
            UnavailableError: a name changed while the block ran.
        """

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""

    def names(self, path: str = "") -> list[str]:
        """The sorted names in a directory; empty if it is none."""

    def directories(self) -> list[str]:
        """The sorted names of the directories at the top; the versions are among them."""
