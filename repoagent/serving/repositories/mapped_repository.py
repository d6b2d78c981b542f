"""A repository some of whose directories are models of other names."""

from collections.abc import Mapping
from typing import Protocol

from repoagent.errors import InvalidArgumentError
from repoagent.storage import ModelSource, Repository

__all__ = ["MappedRepository", "ModelRepository"]


class ModelRepository(Protocol):
    """What a set of repositories needs of each."""

    @property
    def url(self) -> str: ...

    def model_names(self) -> list[str]: ...

    def model(self, name: str) -> ModelSource | None: ...

    @property
    def is_remote(self) -> bool: ...

    def hurry(self) -> None: ...


class MappedRepository:
    """``repository`` under the names of ``mapping`` (directory -> model); directories that are not in it keep theirs.

    Raises:
        InvalidArgumentError: two directories are to have one name, or a name cannot be that of a model.
    """

    def __init__(self, repository: Repository, mapping: Mapping[str, str]) -> None:
        self._repository = repository
        self._names = dict(mapping)
        self._directories: dict[str, str] = {}
        for directory, name in mapping.items():
            if not isinstance(name, str) or name in ("", ".", "..") or "/" in name or "\0" in name:
                raise InvalidArgumentError(
                    f"failed to register '{repository.url}', {name!r} cannot be the name of the model in '{directory}'"
                )
            if name in self._directories:
                raise InvalidArgumentError(
                    f"failed to register '{repository.url}', there is a conflicting mapping for '{name}'"
                )
            self._directories[name] = directory

    @property
    def url(self) -> str:
        """The URL of the repository."""
        return self._repository.url

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
        return sorted({self._names.get(directory, directory) for directory in self._repository.model_names()})

    def model(self, name: str) -> ModelSource | None:
        """See :meth:`repoagent.storage.Repository.model`."""
        directory = self._directories.get(name, name)
        if directory == name and name in self._names:
            return None  # That directory has another name here.
        source = self._repository.model(directory)
        if source is not None:
            source.name, source.renamed = name, name != directory
        return source
