"""The final repository of a model as a backend sees it: in a directory, in memory, or where it came from."""

import builtins
import errno
import io
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import BinaryIO, Final, Protocol

from repoagent.beneath.opening import list_beneath, open_beneath, relative_parts, status_beneath
from repoagent.beneath.unchanged import Watched
from repoagent.errors import NotFoundError, UnavailableError, full_disk, storage_faults
from repoagent.storage.paths.names import check_tree, join_inside
from repoagent.storage.repositories.sources import ModelSource

_ABSENT: Final = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP})


class DirectoryFiles:
    """The :class:`ModelFiles` of a directory, which may be read-only. Links stay inside it."""

    def __init__(self, root: Path, *, fleeting: bool = False) -> None:
        """``root`` is the model's directory; it stays the caller's."""
        self.root = root
        self.fleeting = fleeting

    def bytes(self, path: str) -> builtins.bytes:
        with _faults(path), open_beneath(self.root, path) as file:
            return file.readall()

    def open(self, path: str) -> BinaryIO:
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
        try:
            status_beneath(self.root, path)
        except OSError:
            return False
        return True

    def names(self, path: str = "") -> list[str]:
        try:
            return list_beneath(self.root, path)
        except OSError as error:
            if error.errno in _ABSENT:
                return []
            raise

    def directories(self) -> list[str]:
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


class SourceFiles:
    """:class:`~repoagent.storage.files.files.ModelFiles` over a :class:`ModelSource`. Thread-safe.

    Of a remote model a path is fetched with its whole top directory (a version: a model file may need its
    neighbours), so versions that no one loads stay where they are. Bytes are read from afar unless they are here.
    The names are those of one listing, made at the first call. A local model is used in place.
    """

    fleeting: Final = False

    def __init__(self, source: ModelSource, fetch: Callable[[str], Path]) -> None:
        """List and fetch nothing yet.

        Args:
            source: The model.
            fetch: Brings a directory of the model here, ``""`` for all of it; usually a
                :class:`~repoagent.storage.cache.cache.Fetcher`. What it returns stays while this object is used.
        """
        self._source = source
        self._fetch = fetch
        self._lock = threading.Lock()
        self._here: dict[str, Path] = {} if source.is_remote else {"": Path(source.root)}
        self._names: dict[str, str] | None = None

    def bytes(self, path: str) -> builtins.bytes:
        here = self._local(path)
        if here is not None:
            return here[0].bytes(here[1])
        name = self._remote_name(path)
        with storage_faults("read", f"{self._source.location}/{path}"):
            content: builtins.bytes = self._source.fs.cat_file(name)
            return content

    def open(self, path: str) -> BinaryIO:
        """A binary reader; close it. From afar it reads in blocks as it goes."""
        here = self._local(path)
        if here is not None:
            return here[0].open(here[1])
        name = self._remote_name(path)
        with storage_faults("open", f"{self._source.location}/{path}"):
            reader: BinaryIO = self._source.fs.open(name, "rb")
            return reader

    def local_path(self, path: str = "") -> Path:
        """A path on this machine; fetches the version directory that it is in, or the whole model. Read only."""
        parts = relative_parts(path)
        if self._local(path) is None:
            if not self.exists(path):
                raise NotFoundError(f"the model has no '{path}'")
            self._bring(parts[0] if parts and self._is_directory(parts[0]) else "")
        here = self._local(path)
        if here is None:
            raise NotFoundError(f"the model has no '{path}'")
        return here[0].local_path(here[1])

    @contextmanager
    def reading(self, path: str = "") -> Iterator[Path]:
        """As :meth:`local_path`; a model that is used in place is looked at before and after."""
        self.local_path(path)
        here = self._local(path)
        if here is None:
            raise NotFoundError(f"the model has no '{path}'")
        with here[0].reading(here[1]) as place:
            yield place

    def exists(self, path: str) -> bool:
        here = self._local(path)
        if here is not None:
            return here[0].exists(here[1])
        clean = "/".join(relative_parts(path))
        return not clean or clean in self._listing() or self._is_directory(clean)

    def names(self, path: str = "") -> list[str]:
        here = self._local(path)
        if here is not None:
            return here[0].names(here[1])
        parts = relative_parts(path)
        inside = (tuple(name.split("/")) for name in self._listing())
        return sorted({one[len(parts)] for one in inside if one[: len(parts)] == parts and len(one) > len(parts)})

    def directories(self) -> list[str]:
        here = self._local("")
        if here is not None:
            return here[0].directories()
        return sorted({path.partition("/")[0] for path in self._listing() if "/" in path})

    def _local(self, path: str) -> tuple[DirectoryFiles, str] | None:
        """Where ``path`` is on this machine, and what it is called there; None if it is not here."""
        parts = relative_parts(path)
        with self._lock:
            if "" in self._here:
                return DirectoryFiles(self._here[""]), "/".join(parts)
            if parts and parts[0] in self._here:
                return DirectoryFiles(self._here[parts[0]]), "/".join(parts[1:])
        return None

    def _bring(self, subtree: str) -> None:
        directory = self._fetch(subtree)
        with self._lock:
            self._here[subtree] = directory

    def _listing(self) -> dict[str, str]:
        """Path in the model -> name on its filesystem."""
        with self._lock:
            if self._names is None:
                self._names = {entry.path: entry.name for entry in self._source.entries()}
            return self._names

    def _is_directory(self, path: str) -> bool:
        return any(name.startswith(path + "/") for name in self._listing())

    def _remote_name(self, path: str) -> str:
        name = self._listing().get("/".join(relative_parts(path)))
        if name is None:
            raise NotFoundError(f"the model has no file '{path}'")
        return name


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
        """Write this file, or all that is in this directory, to the spill directory and return where it is;
        ``UnavailableError`` if that is full."""
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
        return not relative_parts(path) or bool(self._below(path))

    def names(self, path: str = "") -> list[str]:
        depth = len(relative_parts(path))
        inside = (name.split("/") for name in self._below(path))
        return sorted({parts[depth] for parts in inside if len(parts) > depth})

    def directories(self) -> list[str]:
        return sorted({path.partition("/")[0] for path in self._files if "/" in path})

    def _below(self, path: str) -> list[str]:
        prefix = "/".join(relative_parts(path))
        return [name for name in self._files if not prefix or name == prefix or name.startswith(prefix + "/")]

    @staticmethod
    def _write(path: Path, content: builtins.bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)
