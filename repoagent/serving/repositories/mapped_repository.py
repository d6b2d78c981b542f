"""A repository some of whose directories are models of other names."""

from collections.abc import Iterable
from typing import Protocol

from repoagent.errors import InvalidArgumentError
from repoagent.storage import ModelSource, Repository

__all__ = ["MappedRepository", "ModelRepository"]


class ModelRepository(Protocol):
    """What a set of repositories needs of each."""

    @property
    def url(self) -> str: ...

    @property
    def place(self) -> object: ...

    def model_names(self) -> list[str]: ...

    def model(self, name: str) -> ModelSource | None: ...

    @property
    def is_remote(self) -> bool: ...

    def hurry(self) -> None: ...


class MappedRepository:
    """``repository`` under the names of ``mapping``: pairs of a directory and the name of a model in it.

    A directory may have several names. One that is not in the mapping keeps its own.

    Raises:
        InvalidArgumentError: two directories are to have one name, or a name cannot be that of a model.
    """

    def __init__(self, repository: Repository, mapping: Iterable[tuple[str, str]], shown: str = "") -> None:
        """``shown``: the path as the caller gave it, for errors."""
        shown = shown or repository.url
        self._repository = repository
        self._directories: dict[str, str] = {}
        for directory, name in mapping:
            if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
                raise InvalidArgumentError(
                    f"failed to register '{shown}', {name!r} cannot be the name of the model in '{directory}'"
                )
            if name in self._directories:
                raise InvalidArgumentError(f"failed to register '{shown}', there is a conflicting mapping for '{name}'")
            self._directories[name] = directory
        self._renamed = frozenset(self._directories.values())

    @property
    def url(self) -> str:
        """The URL of the repository."""
        return self._repository.url

    @property
    def place(self) -> object:
        """See :meth:`repoagent.storage.Repository.place`."""
        return self._repository.place

    @property
    def is_remote(self) -> bool:
        """See :meth:`repoagent.storage.Repository.is_remote`."""
        return self._repository.is_remote

    def hurry(self) -> None:
        """See :meth:`repoagent.storage.Repository.hurry`."""
        self._repository.hurry()

    @property
    def mapped(self) -> frozenset[str]:
        """The names that come from the mapping."""
        return frozenset(self._directories)

    def model_names(self) -> list[str]:
        """See :meth:`repoagent.storage.Repository.model_names`."""
        directories = set(self._repository.model_names())
        mapped = {name for name, directory in self._directories.items() if directory in directories}
        return sorted(mapped | (directories - self._renamed))

    def model(self, name: str) -> ModelSource | None:
        """See :meth:`repoagent.storage.Repository.model`."""
        if name not in self._directories and name in self._renamed:
            return None  # That directory has other names here.
        directory = self._directories.get(name, name)
        source = self._repository.model(directory)
        if source is not None:
            source.name, source.renamed = name, name != directory
        return source
