"""Several model repositories as one."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.serving.repositories.mapped_repository import MappedRepository, ModelRepository
from repoagent.serving.requests.model_id import ModelId
from repoagent.storage import ModelSource, Repository

__all__ = ["RepositorySet"]

logger = logging.getLogger(__name__)


class RepositorySet:
    """The repositories of a server, opened by ``opener``. Listings are fresh each time and read no file of any model.

    With ``namespacing`` a name may be there once in each repository, and an identity says which one is meant; without,
    identities are names. Methods may be called from any thread.
    """

    def __init__(self, urls: Iterable[str], opener: Callable[[str], Repository], *, namespacing: bool = False) -> None:
        self.namespacing = namespacing
        self._open = opener
        self._lock = threading.Lock()
        self._repositories: tuple[ModelRepository, ...] = tuple(opener(url) for url in urls)
        self._listings: dict[str, list[str]] = {}
        """What each repository had when it was listed last, by its URL."""
        self._unlisted: set[str] = set()
        """The repositories that could not be listed the last time."""

    def register(self, url: str, name_mapping: Mapping[str, str] | None = None) -> None:
        """Add a repository, with other names for some of its models; see :class:`MappedRepository`.

        Raises:
            InvalidArgumentError: there is no such repository, or the mapping gives a name twice.
            AlreadyExistsError: the repository is known, or a name of the mapping is mapped already.
        """
        opened = self._open(url)
        repository: ModelRepository = MappedRepository(opened, name_mapping) if name_mapping else opened
        try:
            self._list(repository)
        except NotFoundError as error:
            raise InvalidArgumentError(f"failed to register '{url}', repository not found") from error
        with self._lock:
            self._refuse_known(url, repository)
            self._repositories = (*self._repositories, repository)

    def _refuse_known(self, url: str, added: ModelRepository) -> None:
        if any(repository.url == added.url for repository in self._repositories):
            raise AlreadyExistsError(f"model repository '{url}' has already been registered")
        for repository in self._repositories:
            if isinstance(repository, MappedRepository) and isinstance(added, MappedRepository):
                for name in sorted(repository.mapped & added.mapped):
                    raise AlreadyExistsError(
                        f"failed to register '{name}', there is a conflicting mapping for '{name}'"
                    )

    def unregister(self, url: str) -> None:
        """Forget a repository.

        Raises:
            InvalidArgumentError: it is not known.
        """
        known = self._open(url).url
        with self._lock:
            left = tuple(repository for repository in self._repositories if repository.url != known)
            if len(left) == len(self._repositories):
                raise InvalidArgumentError(f"failed to unregister '{url}', repository not found")
            self._repositories = left
            self._listings.pop(known, None)
            self._unlisted.discard(known)

    def _id(self, repository: ModelRepository, name: str) -> ModelId:
        return ModelId(name, repository.url if self.namespacing else "")

    def names(self) -> list[ModelId]:
        """The sorted identities of all models.

        Raises:
            RepoAgentError: a repository cannot be listed. Then nothing is known, and nobody should conclude that its
                models are gone.
        """
        return sorted(
            {self._id(repository, name) for repository in self._repositories for name in self._list(repository)}
        )

    def listing(self) -> dict[ModelId, str]:
        """The identities of all models, each with the reason why nobody knows whether it is still there; mostly "".

        There is such a reason for the models of a repository that cannot be listed now: those of its last listing.

        Raises:
            RepoAgentError: a repository could never be listed.
        """
        found: dict[ModelId, str] = {}
        for repository in self._repositories:
            reason = ""
            try:
                names = self._list(repository)
            except RepoAgentError as error:
                reason, names = str(error), self._last_listing(repository, error)
            for name in names:
                model = self._id(repository, name)
                found[model] = found.get(model, reason) and reason
        return found

    def _list(self, repository: ModelRepository) -> list[str]:
        names = self._listings[repository.url] = repository.model_names()
        if repository.url in self._unlisted:
            self._unlisted.discard(repository.url)
            logger.info("model repository %s can be listed again", repository.url)
        return names

    def _last_listing(self, repository: ModelRepository, error: RepoAgentError) -> list[str]:
        if repository.url not in self._listings:
            raise error
        if repository.url not in self._unlisted:
            self._unlisted.add(repository.url)
            logger.warning("%s; the index has its models as they were listed last", error)
        return self._listings[repository.url]

    def ids(self, name: str) -> list[ModelId]:
        """All models called ``name``; without namespacing that one, whether it exists or not."""
        if not self.namespacing:
            return [ModelId.of(name)]
        return [self._id(repository, name) for repository in self._repositories if repository.model(name) is not None]

    def find(self, name: str) -> ModelSource:
        """The model called ``name``, or of that identity.

        Raises:
            NotFoundError: no repository has it.
            InvalidArgumentError: several have it, so which one is meant nobody can tell.
        """
        wanted = ModelId.of(name)
        found = [
            (repository, repository.model(wanted.name))
            for repository in self._repositories
            if wanted.namespace in ("", repository.url)
        ]
        sources = [(repository.url, source) for repository, source in found if source is not None]
        if not sources:
            raise NotFoundError("model not found in any model repository")
        if len(sources) > 1:
            places = ", ".join(url for url, _ in sources)
            raise InvalidArgumentError(f"not unique across all model repositories: it is in {places}")
        return sources[0][1]
