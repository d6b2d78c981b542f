"""A directory seen through a filesystem that the loader takes for a remote one."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from fsspec.implementations.local import LocalFileSystem

from repoagent.storage.repositories.sources import ModelSource


class RemoteFileSystem(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """The files of this machine, to be fetched as if they were far away.

    ``before_read(path)`` is called before each read of a file's content; what it raises is what the reader gets.
    """

    protocol = "test"
    cachable = False

    def __init__(self, before_read: Callable[[str], None] | None = None) -> None:
        super().__init__()
        self._before_read = before_read or (lambda _path: None)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any) -> bytes:
        """The bytes from ``start`` to ``end``."""
        self._before_read(path)
        content: bytes = super().cat_file(path, start=start, end=end, **kwargs)
        return content

    def get_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        """Copy the file ``path1`` to ``path2`` on this machine."""
        self._before_read(path1)
        super().get_file(path1, path2, **kwargs)


def remote_source(directory: Path, *, before_read: Callable[[str], None] | None = None) -> ModelSource:
    """The model in ``directory``, named like it, as a remote one.

    Args:
        directory: It may change between loads, as a bucket may.
        before_read: See :class:`RemoteFileSystem`; raise ``OSError`` in it for a store that fails.
    """
    fs = RemoteFileSystem(before_read)
    return ModelSource(directory.name, fs=fs, root=str(directory), location=f"test://{directory}")
