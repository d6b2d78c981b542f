"""Several model repositories as one."""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from repoagent.errors import AlreadyExistsError, InvalidArgumentError, NotFoundError, RepoAgentError
from repoagent.serving.requests.request import ModelId
from repoagent.storage.repositories.sources import ModelSource, Repository

logger = logging.getLogger(__name__)


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
        return self._repository.url

    @property
    def place(self) -> object:
        return self._repository.place

    @property
    def is_remote(self) -> bool:
        return self._repository.is_remote

    def hurry(self) -> None:
        self._repository.hurry()

    @property
    def mapped(self) -> frozenset[str]:
        """The names that come from the mapping."""
        return frozenset(self._directories)

    def model_names(self) -> list[str]:
        directories = set(self._repository.model_names())
        mapped = {name for name, directory in self._directories.items() if directory in directories}
        return sorted(mapped | (directories - self._renamed))

    def model(self, name: str) -> ModelSource | None:
        if name not in self._directories and name in self._renamed:
            return None  # That directory has other names here.
        directory = self._directories.get(name, name)
        source = self._repository.model(directory)
        if source is not None:
            source.name, source.renamed = name, name != directory
        return source


ModelRepository = Repository | MappedRepository


T = TypeVar("T")

NameMapping = Mapping[str, str] | Sequence[tuple[str, str]]
"""Directories of a repository, and the names of the models in them; as pairs, a directory can have several."""

_AT_ONCE: Final = 16
"""How many remote repositories are asked at once."""


class RepositorySet:
    """The repositories of a server, opened by ``opener``. Listings are fresh each time and read no file of any model.

    With ``namespacing`` a name may be there once in each repository, and an identity states which; without,
    identities are names. Remote repositories are asked at once, so that the slowest counts and not the sum; one that
    does not answer in time does not keep requests from the models of the others. Methods may be called from any thread.
    """

    def __init__(self, urls: Iterable[str], opener: Callable[[str], Repository], *, namespacing: bool = False) -> None:
        self.namespacing = namespacing
        self._open = opener
        self._lock = threading.Lock()
        self._repositories: tuple[ModelRepository, ...] = ()
        for url in urls:
            self._add_first(url, opener(url))
        self._listings: dict[str, list[str]] = {}
        """What each repository had when it was listed last, by its URL."""
        self._unlisted: set[str] = set()
        """The repositories that could not be listed the last time."""

    def _add_first(self, url: str, repository: ModelRepository) -> None:
        """One that is given twice counts once: its models would be in two repositories otherwise."""
        known = [one for one in self._repositories if one.place == repository.place]
        if known:
            logger.warning("model repository %s is %s, which was given before; it counts once", url, known[0].url)
        else:
            self._repositories = (*self._repositories, repository)

    def register(self, url: str, name_mapping: NameMapping | None = None) -> None:
        """Add a repository, with other names for some of its models; see :class:`MappedRepository`.

        Raises:
            InvalidArgumentError: there is no such repository, or the mapping gives a name twice.
            AlreadyExistsError: the repository is known, or a name of the mapping is mapped already.
        """
        opened = self._open(url)
        pairs = name_mapping.items() if isinstance(name_mapping, Mapping) else name_mapping or ()
        repository: ModelRepository = MappedRepository(opened, pairs, url) if pairs else opened
        try:
            self._list(repository)
        except NotFoundError as error:
            raise InvalidArgumentError(f"failed to register '{url}', repository not found") from error
        with self._lock:
            self._refuse_known(url, repository)
            self._repositories = (*self._repositories, repository)

    def _refuse_known(self, url: str, added: ModelRepository) -> None:
        if any(repository.place == added.place for repository in self._repositories):
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
        opened = self._open(url)
        with self._lock:
            gone = [one for one in self._repositories if one.url == opened.url or one.place == opened.place]
            if not gone:
                raise InvalidArgumentError(f"failed to unregister '{url}', repository not found")
            self._repositories = tuple(one for one in self._repositories if one not in gone)
            for one in gone:
                self._listings.pop(one.url, None)
                self._unlisted.discard(one.url)

    def hurry(self) -> None:
        """The server stops: nothing waits any longer for repositories that do not answer."""
        for repository in self._repositories:
            repository.hurry()

    def _id(self, repository: ModelRepository, name: str) -> ModelId:
        return ModelId(name, repository.url if self.namespacing else "")

    def _ask(
        self, question: Callable[[ModelRepository], T], asked: Sequence[ModelRepository] | None = None
    ) -> "list[tuple[ModelRepository, T | RepoAgentError]]":
        """What each repository answers, all of them unless some are named; the remote ones are asked at once."""
        repositories = self._repositories if asked is None else asked

        def answer(repository: ModelRepository) -> T | RepoAgentError:
            try:
                return question(repository)
            except RepoAgentError as error:
                return error

        remote = [repository for repository in repositories if repository.is_remote]
        if not remote or len(repositories) == 1:
            return [(repository, answer(repository)) for repository in repositories]
        with ThreadPoolExecutor(min(_AT_ONCE, len(remote)), "repoagent-repositories") as pool:
            futures = {one.url: pool.submit(answer, one) for one in remote}
            local = {one.url: answer(one) for one in repositories if one.url not in futures}
            return [(one, local[one.url] if one.url in local else futures[one.url].result()) for one in repositories]

    def names(self) -> list[ModelId]:
        """The sorted identities of all models.

        Raises:
            RepoAgentError: a repository cannot be listed. Then nothing is known, and it must not be concluded that its
                models are gone.
        """
        answers = [(repository, _sure(names)) for repository, names in self._ask(self._list)]
        return sorted({self._id(repository, name) for repository, names in answers for name in names})

    def listing(self) -> dict[ModelId, str]:
        """The identities of all models, each with the reason why it cannot be loaded as things are; mostly "".

        There is such a reason for the models of a repository that cannot be listed now, which are those of its last
        listing, and for one that is in several repositories.

        Raises:
            RepoAgentError: a repository could never be listed.
        """
        found: dict[ModelId, str] = {}
        places: dict[ModelId, list[ModelRepository]] = {}
        for repository, answer in self._ask(self._list):
            reason, names = "", answer
            if isinstance(names, RepoAgentError):
                reason, names = str(names), self._last_listing(repository, names)
            for name in names:
                model = self._id(repository, name)
                places.setdefault(model, []).append(repository)
                found[model] = found.get(model, reason) and reason
        meant = {model: _meant(model.name, holders) for model, holders in places.items()}
        return found | {model: self._not_unique(holders) for model, holders in meant.items() if len(holders) > 1}

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
        """All models called ``name``; without namespacing that one, whether it exists or not.

        A repository that does not answer counts as it was listed last.
        """
        if not self.namespacing:
            return [ModelId.of(name)]
        answers = self._ask(lambda repository: repository.model(name))
        return [self._id(one, name) for one, answer in answers if self._holds(one, name, answer)]

    def find(self, name: str) -> ModelSource:
        """The model called ``name``, or of that identity.

        A repository that does not answer counts as it was listed last.

        Raises:
            NotFoundError: no repository has it.
            InvalidArgumentError: several have it, so the one that is meant is unknown.
            UnavailableError: the repository that has, or may have it, does not answer.
        """
        wanted = ModelId.of(name)
        asked = [one for one in self._repositories if wanted.namespace in ("", one.url)]
        answers = self._ask(lambda one: one.model(wanted.name), asked)
        holders = [one for one, answer in answers if self._holds(one, wanted.name, answer)]
        meant = holders if self.namespacing else _meant(wanted.name, holders)
        sources = [answer for one, answer in answers if isinstance(answer, ModelSource) and one in meant]
        if not sources:
            raise next(
                (answer for _, answer in answers if isinstance(answer, RepoAgentError)),
                NotFoundError("model not found in any model repository"),
            )
        if len(meant) > 1:
            raise InvalidArgumentError(self._not_unique(meant))
        return sources[0]

    def _not_unique(self, holders: Sequence[ModelRepository]) -> str:
        """By their numbers: clients read it, and where a repository is does not concern them."""
        numbers = [str(number) for number, one in enumerate(self._repositories, 1) if one in holders]
        return (
            "not unique across all model repositories: it is in the repositories "
            f"{', '.join(numbers[:-1])} and {numbers[-1]}, counted as the server was given them"
        )

    def _holds(self, repository: ModelRepository, name: str, answer: "ModelSource | RepoAgentError | None") -> bool:
        """Whether the model is there; in a repository that does not answer: whether it was when last listed."""
        if isinstance(answer, RepoAgentError):
            return name in self._listings.get(repository.url, [name])
        return answer is not None


def _sure(answer: "T | RepoAgentError") -> T:
    if isinstance(answer, RepoAgentError):
        raise answer
    return answer


def _meant(name: str, holders: Sequence[ModelRepository]) -> Sequence[ModelRepository]:
    """Which of the repositories that have the model are meant: a name that is mapped wins over those that are not."""
    mapped = [one for one in holders if isinstance(one, MappedRepository) and name in one.mapped]
    return mapped or holders
