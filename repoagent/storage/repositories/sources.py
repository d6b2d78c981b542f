"""One model where its owner put it, before any agent touched it."""

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from repoagent.api.actions import ArtifactType
from repoagent.beneath import open_beneath, read_up_to
from repoagent.errors import ConfigError, NotFoundError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.storage.paths.faults import storage_faults
from repoagent.storage.paths.names import check_tree, object_parts
from repoagent.storage.repositories.filesystems import is_local, open_patiently
from repoagent.storage.repositories.listing import FileEntry, Fingerprint, fingerprint_of, list_directories, list_files
from repoagent.storage.repositories.url import RepositoryUrl, parse_url

_VERSION: Final = re.compile(r"[1-9][0-9]{0,18}")
_LARGEST: Final = 2**63 - 1


def version_numbers(directories: Iterable[str]) -> list[int]:
    """The versions among the names of a model's directories, ascending. Names with leading zeros are none."""
    numbers = (int(name) for name in directories if _VERSION.fullmatch(name))
    return sorted(number for number in numbers if number <= _LARGEST)


class ModelSource:
    """A model's directory in a repository. It holds no connection of its own and needs no closing.

    Attributes:
        name: The model's name: its directory in the repository.
        location: The directory, or the URL as the operator spelled it; fit for messages.
        artifact_type: Whether ``location`` is a directory of this machine.
        fs: The fsspec filesystem it lies on.
        root: The model's directory as a path of ``fs``.
        renamed: The name is the server's choice, so that a name in the configuration does not count.
    """

    def __init__(self, name: str, *, fs: Any, root: str, location: str, limits: Limits = DEFAULT_LIMITS) -> None:
        self.name = name
        self.fs = fs
        self.root = root
        self.renamed = False
        self._most_files = limits.model_files
        self.location = location
        self.artifact_type = ArtifactType.FILESYSTEM if is_local(fs) else ArtifactType.REMOTE_FILESYSTEM

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, location={self.location!r})"

    @property
    def is_remote(self) -> bool:
        """Whether its files must be brought here before a backend can have paths of them."""
        return self.artifact_type is ArtifactType.REMOTE_FILESYSTEM

    def entries(self) -> list[FileEntry]:
        """Every file, sorted by path, from one fresh listing.

        Raises:
            InvalidArgumentError: there are more than a model may have.
            NotFoundError: the model is gone.
            UnsafePathError: a name or link leads out of the model's directory.
            UnavailableError: the filesystem does not answer.
        """
        with storage_faults("list", self.location):
            return list_files(self.fs, self.root, most=self._most_files)

    def fingerprint(self) -> Fingerprint:
        """What all files look like now (path, size, and times or ETag). Errors as in :meth:`entries`."""
        return fingerprint_of(self.contents())

    def contents(self) -> list[FileEntry]:
        """Every file, with the surest tag that there is for its content. Errors as in :meth:`entries`."""
        return self.entries()

    def read_config_text(
        self, filename: str = "config.pbtxt", *, limit: int = DEFAULT_LIMITS.config_bytes
    ) -> str | None:
        """The text of the configuration file; None if there is none.

        Raises:
            ConfigError: it is not UTF-8, or has more than ``limit`` bytes.
            UnsafePathError: ``filename`` leads out of the model's directory.
        """
        try:
            with storage_faults("read", f"{self.location}/{filename}"):
                content = self._read(filename, limit + 1)
        except NotFoundError:
            return None
        if len(content) > limit:
            raise ConfigError(f"more than {limit} bytes ({Limits.flag('config_bytes')})", source=filename)
        try:
            return content.decode()
        except UnicodeDecodeError as error:
            raise ConfigError(f"byte {error.start} is not UTF-8 text", source=filename) from error

    def versions(self) -> list[int]:
        """The numbers of the version directories, ascending. Other names, and numbers with a leading 0, are ignored."""
        with storage_faults("list", self.location):
            names = list_directories(self.fs, self.root)
        return version_numbers(names)

    def _read(self, relative: str, most: int) -> bytes:
        """The first ``most`` bytes of a file."""
        if not self.is_remote:
            with open_beneath(self.root, relative) as file:
                return read_up_to(file, most)
        path = "/".join([self.root.rstrip("/"), *object_parts(relative)])
        with self.fs.open(path, "rb") as stream:
            content: bytes = stream.read(most)
        return content


class MemorySource(ModelSource):
    """A model whose files came with the load call (``file:<path>`` contents). Equal contents, equal fingerprint."""

    def __init__(self, name: str, files: Mapping[str, bytes]) -> None:
        """Copy ``files`` (path relative to the model's directory -> content).

        Raises:
            UnsafePathError: a path leads out of the model's directory, or two paths exclude each other.
        """
        check_tree(files)
        super().__init__(name, fs=new_memory_filesystem(), root="/model", location=f"memory://{name}")
        self.files: Mapping[str, bytes] = dict(files)
        self.fs.makedirs(self.root, exist_ok=True)
        for path, content in self.files.items():
            self.fs.pipe_file(f"{self.root}/{path}", content)

    def contents(self) -> list[FileEntry]:
        """Tagged by the contents themselves: sending the same files again changes nothing."""
        return sorted(
            FileEntry(path, len(content), hashlib.sha256(content).hexdigest(), f"{self.root}/{path}")
            for path, content in self.files.items()
        )


def open_source(
    name: str,
    url: str | RepositoryUrl,
    *,
    storage_options: Mapping[str, Any] | None = None,
    filesystems: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ModelSource:
    """The model whose directory is ``url``: for a location that an agent or a command line names.

    Nothing is read. Errors as in :func:`~repoagent.storage.repositories.filesystems.open_filesystem`.
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    fs, _ = open_patiently(parsed, storage_options, filesystems)
    return ModelSource(name, fs=fs, root=parsed.path, location=parsed.text, limits=limits)


def new_memory_filesystem() -> Any:
    """Return a new, empty fsspec memory filesystem with a store of its own."""
    from fsspec.implementations.memory import MemoryFileSystem

    # fsspec keeps the store on the class, and instances in a cache: a class each avoids both.
    kind = type("PrivateMemoryFileSystem", (MemoryFileSystem,), {"store": {}, "pseudo_dirs": [""], "cachable": False})
    return kind()
