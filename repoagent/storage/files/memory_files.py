"""A model's files as bytes in memory: nothing is written anywhere unless a backend insists on a path."""

import builtins
import io
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from repoagent.errors import NotFoundError
from repoagent.storage.paths.faults import full_disk
from repoagent.storage.paths.names import check_tree, join_inside, relative_parts

__all__ = ["MemoryFiles"]


class MemoryFiles:
    """:class:`~repoagent.storage.files.files.ModelFiles` over a mapping of path to content. Thread-safe."""

    def __init__(
        self, files: Mapping[str, builtins.bytes], spill: Callable[[], Path], *, fleeting: bool = False
    ) -> None:
        """Keep references to the contents; they are not copied.

        Args:
            files: Path relative to the model's directory -> content.
            spill: Called once, at the first :meth:`local_path`: an empty private directory, on a memory filesystem
                for confidential content. It stays the caller's.
            fleeting: What was written there goes as soon as no loaded version reads it any more.

        Raises:
            UnsafePathError: a path leads out of the model's directory, or two exclude each other.
        """
        check_tree(files)
        self.fleeting = fleeting
        self._files = dict(files)
        self._spill = spill
        self._lock = threading.Lock()
        self._spilled: Path | None = None
        self._written: set[str] = set()

    def bytes(self, path: str) -> builtins.bytes:
        """The content itself, not a copy."""
        content = self._files.get("/".join(relative_parts(path)))
        if content is None:
            raise NotFoundError(f"the model has no file '{path}'")
        return content

    def open(self, path: str) -> BinaryIO:
        """A binary reader over the content; no copy is made while it is only read."""
        return io.BytesIO(self.bytes(path))

    def local_path(self, path: str = "") -> Path:
        """Write this file, or all that is in this directory, to the spill directory and return where it is.

        Raises:
            UnavailableError: the spill directory is full.
        """
        chosen = self._below(path)
        if not chosen and path:
            raise NotFoundError(f"the model has no '{path}'")
        with self._lock:
            if self._spilled is None:
                self._spilled = self._spill()
            missing = [name for name in chosen if name not in self._written]
            with full_disk("the spill directory", sum(len(self._files[name]) for name in missing)):
                for name in missing:
                    self._write(join_inside(self._spilled, name), self._files[name])
                    self._written.add(name)
            return join_inside(self._spilled, path)

    @contextmanager
    def reading(self, path: str = "") -> Iterator[Path]:
        """As :meth:`local_path`: no one else can write there."""
        yield self.local_path(path)

    def exists(self, path: str) -> bool:
        """Whether there is such a file or directory."""
        return not relative_parts(path) or bool(self._below(path))

    def names(self, path: str = "") -> list[str]:
        """The sorted names in a directory; empty if it is none."""
        depth = len(relative_parts(path))
        inside = (name.split("/") for name in self._below(path))
        return sorted({parts[depth] for parts in inside if len(parts) > depth})

    def directories(self) -> list[str]:
        """The sorted names of the directories at the top."""
        return sorted({path.partition("/")[0] for path in self._files if "/" in path})

    def _below(self, path: str) -> list[str]:
        prefix = "/".join(relative_parts(path))
        return [name for name in self._files if not prefix or name == prefix or name.startswith(prefix + "/")]

    @staticmethod
    def _write(path: Path, content: builtins.bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)
