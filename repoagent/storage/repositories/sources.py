"""One model where its owner put it, before any agent touched it."""

import contextlib
import hashlib
import logging
import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from repoagent.api.report import ArtifactType
from repoagent.beneath.opening import open_beneath, read_up_to
from repoagent.errors import ConfigError, NotFoundError, storage_faults
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.public_text import hide, hide_url
from repoagent.storage.paths.names import check_model_directory, check_tree, is_text, object_parts
from repoagent.storage.repositories.filesystems import TIMEOUT, RemoteCalls, is_local, open_patiently
from repoagent.storage.repositories.listing import FileEntry, Fingerprint, fingerprint_of, list_directories, list_files
from repoagent.storage.repositories.url import RepositoryUrl, parse_url, with_credentials

logger = logging.getLogger(__name__)


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
        """Copy ``files`` (path relative to the model's directory -> content). Raises ``UnsafePathError`` if a path
        leads out of it, or two exclude each other."""
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
    filesystems: Mapping[str, str] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> ModelSource:
    """The model whose directory is ``url``: for a location that an agent or a command line names.

    Nothing is read. Errors as in :func:`~repoagent.storage.repositories.filesystems.open_filesystem`.
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    fs, _ = open_patiently(parsed, None, filesystems)
    return ModelSource(name, fs=fs, root=parsed.path, location=parsed.text, limits=limits)


def new_memory_filesystem() -> Any:
    """Return a new, empty fsspec memory filesystem with a store of its own."""
    from fsspec.implementations.memory import MemoryFileSystem

    # fsspec keeps the store on the class, and instances in a cache: a class each avoids both.
    kind = type("PrivateMemoryFileSystem", (MemoryFileSystem,), {"store": {}, "pseudo_dirs": [""], "cachable": False})
    return kind()


class Repository:
    """A model repository: each directory in it is a model. Listings are always fresh; nothing needs closing.

    A remote one answers in time or raises, also to those who read its models: see :class:`RemoteCalls`.
    """

    def __init__(
        self, url: RepositoryUrl, fs: Any, calls: RemoteCalls | None = None, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._url = url
        if url.is_local:
            hide(url.path, "repository")
        else:
            hide_url(url.text, "repository")
        self._fs = fs
        self._calls = calls
        self._limits = limits
        self._unspeakable: set[str] = set()

    @classmethod
    def open(
        cls,
        url: str,
        *,
        storage_options: Mapping[str, Any] | None = None,
        filesystems: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
        limits: Limits = DEFAULT_LIMITS,
    ) -> "Repository":
        """Open the repository at ``url``; see :func:`~repoagent.storage.repositories.url.parse_url` for the spellings.

        Nothing is listed yet, so a wrong path shows at the first :meth:`model_names`.

        Args:
            url: A local path or a URL.
            storage_options: Keyword arguments of the fsspec filesystem, over those that the URL implies.
            filesystems: Protocol -> ``"module:attribute"`` of a filesystem class, from plug-ins.
            timeout: Seconds that a remote filesystem has to answer a question, and for which a download may be silent.
            limits: What one model may have.

        Raises:
            InvalidArgumentError: the URL cannot be read.
            UnsupportedError: the filesystem's package is missing; the message states what to install.
        """
        parsed = with_credentials(parse_url(url))
        return cls(parsed, *open_patiently(parsed, storage_options, filesystems, timeout), limits)

    def hurry(self) -> None:
        """The server stops: from now on no one waits for the filesystem for longer than a second."""
        if self._calls is not None:
            self._calls.close()

    def __repr__(self) -> str:
        return f"Repository({self.url!r})"

    @property
    def url(self) -> str:
        """The URL as given, without credentials; for a local path the absolute one."""
        return self._url.text

    @property
    def place(self) -> object:
        """Equal for two spellings of one place, such as a link to a directory and the directory."""
        with contextlib.suppress(OSError):
            if self._url.is_local:
                status = os.stat(self._url.path)
                return status.st_dev, status.st_ino
        return self.url

    @property
    def is_remote(self) -> bool:
        """Whether models must be brought here before they can be loaded."""
        return not self._url.is_local

    def model_names(self) -> list[str]:
        """The sorted names of all directories; hidden ones (``.git``, ``..data``) are none. One listing.

        A directory may be a link: operators do that. Nothing inside it is read. One whose name is not UTF-8 is left
        out, with a warning: no client could ask for it, and an index with its name could not be written.

        Raises:
            NotFoundError: there is no such repository.
            UnavailableError: the filesystem does not answer.
        """
        with storage_faults("list model repository", self.url):
            names = list_directories(self._fs, self._url.path)
        return [name for name in names if self._is_text(name)]

    def _is_text(self, name: str) -> bool:
        if is_text(name):
            return True
        if name not in self._unspeakable:
            self._unspeakable.add(name)
            logger.warning("the directory %a of %s is not a model: its name is not UTF-8; rename it", name, self.url)
        return False

    def model(self, name: str) -> ModelSource | None:
        """The model called ``name``; None if there is no such directory.

        Raises:
            UnsafePathError: ``name`` is not one plain name.
            InvalidArgumentError: it is not UTF-8.
            UnavailableError: the filesystem does not answer.
        """
        place = self._url.child(check_model_directory(name))
        with storage_faults("look into", self.url):
            self._fs.invalidate_cache()
            if not self._fs.isdir(place.path):
                return None
        return ModelSource(name, fs=self._fs, root=place.path, location=place.text, limits=self._limits)
