"""A directory of models, anywhere fsspec reaches."""

import contextlib
import logging
import os
from collections.abc import Mapping
from typing import Any

from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.public_text import hide, hide_url
from repoagent.storage.paths.faults import storage_faults
from repoagent.storage.paths.names import check_model_directory, is_text
from repoagent.storage.repositories.credentials import with_credentials
from repoagent.storage.repositories.filesystems import TIMEOUT, open_patiently
from repoagent.storage.repositories.listing import list_directories
from repoagent.storage.repositories.remote_calls import RemoteCalls
from repoagent.storage.repositories.sources import ModelSource
from repoagent.storage.repositories.url import RepositoryUrl, parse_url

logger = logging.getLogger(__name__)


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
