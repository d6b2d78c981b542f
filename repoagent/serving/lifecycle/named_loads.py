"""Loads by name: one model, or all of that name where there are namespaces."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress

from repoagent.api.report import LoadReport
from repoagent.beneath.opening import shown
from repoagent.config import ModelConfig, read_json
from repoagent.errors import InternalError, InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.serving.ensembles.plan import Dependencies
from repoagent.serving.lifecycle.load_attempt import LoadRequest
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.lifecycle.repository_set import RepositorySet
from repoagent.serving.requests.request import ModelId
from repoagent.serving.versions.model_builder import BuildError
from repoagent.storage.paths.names import check_model_name

logger = logging.getLogger(__name__)


class EnsembleFollowers:
    """Makes the ensembles in ``table`` follow their members. Every method may be called from any thread."""

    def __init__(self, table: ModelTable, dependencies: Dependencies) -> None:
        self._table = table
        self._dependencies = dependencies

    def changed(self, model: str) -> None:
        """``model`` has been loaded, or lost its members: queue what its ensembles have to do, and return at once.

        Those that are loaded are rebuilt from what it is now. Those that went because it had gone come back.
        """
        if not self._dependencies.any:
            return
        orphans = self._dependencies.orphans_of(model)  # Before others become orphans by this very change.
        for name in self._dependencies.users_of_namesakes(model):
            slot = self._table.get(name)
            if slot is not None:
                slot.follow_members()
        for name, (members, explicit) in orphans.items():
            if all(map(self._available, members)):  # It must not bring back others that were unloaded.
                with suppress(UnavailableError):  # The server is stopping.
                    self._table.load(name, LoadRequest(needed=not explicit))

    def _available(self, model: str) -> bool:
        """Whether ``model``, or one of its name in another repository, is loaded."""
        return any(slot.loaded is not None for slot in self._table.named(ModelId.of(model).name))

    def settle(self, model: str) -> None:
        """Wait until the ensembles that need ``model``, directly or not, have followed it."""
        if not self._dependencies.any:
            return
        queue = [model]
        known: set[tuple[str, str]] = set()
        while queue:
            name = queue.pop(0)
            # Asked for only now: what an ensemble does may let others come back, or go.
            for user in {*self._dependencies.users_of_namesakes(name), *self._dependencies.orphans_of(name)}:
                slot = self._table.get(user)
                if slot is not None and (name, user) not in known:
                    known.add((name, user))
                    slot.settled().result()
                    queue.append(user)


def load_order(
    name: str,
    config: str | bytes | None,
    files: Mapping[str, bytes] | None,
    *,
    version: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> LoadRequest:
    """The order to load ``name`` with a configuration in JSON, and files, of the caller's own, or one version of it.

    Raises ``InvalidArgumentError`` for a configuration that cannot be read or is too large, files without one, or
    either with a version.
    """
    try:
        if version is not None:
            if config is not None or files:
                raise InvalidArgumentError(
                    f"failed to load '{name}' version {version}: one version is loaded from the repository; load the "
                    "whole model to give it a configuration or files"
                )
            return LoadRequest(version=version)
        order = LoadRequest(_override(name, config, limits.config_bytes), dict(files) if files else None)
        if order.files is not None and order.config is None:
            raise InvalidArgumentError(
                f"failed to load '{name}', override model directory requires providing config override"
            )
    except InvalidArgumentError as error:
        logger.error("%s", error)
        raise
    return order


def _override(name: str, config: str | bytes | None, limit: int) -> ModelConfig | None:
    if config is None:
        return None
    if len(config) > limit:  # Parsing it would let no other thread run.
        raise InvalidArgumentError(
            f"failed to load '{name}': the configuration has more than {limit} bytes ({Limits.flag('config_bytes')})"
        )
    try:
        return read_json(config)
    except InvalidArgumentError as error:
        raise InvalidArgumentError(f"failed to load '{name}': invalid configuration: {error}") from error


class NamedLoads:
    """Loads into ``table`` what ``repositories`` have under a name."""

    def __init__(self, table: ModelTable, repositories: RepositorySet, followers: EnsembleFollowers) -> None:
        self._table = table
        self._followers = followers
        self._repositories = repositories

    def ids(self, name: str) -> list[ModelId]:
        """All models of that name; if there is none, the one that will turn out not to exist. Raises ``InternalError``
        if a repository does not answer."""
        try:
            return self._repositories.ids(name) or [ModelId.of(name)]
        except RepoAgentError as error:
            text = f"failed to load '{name}', failed to poll from model repository: {error}"
            logger.error("%s", text)
            raise InternalError(text) from error

    def chosen(self, name: str, order: LoadRequest) -> list[ModelId]:
        """The models that ``order`` means by ``name``, found as in :meth:`ids`; ``InvalidArgumentError`` if what comes
        with the call has a name that no model can have."""
        models = self.ids(name) if order.files is None else [ModelId.of(name)]
        if order.config is not None:
            _check_names(models)
        return models

    def load(self, models: Sequence[ModelId], order: LoadRequest) -> LoadReport:
        """Load the ``models``, all at once, and return the report of the first.

        Ensembles that call them have followed then. Raises with the texts of all that failed.
        """
        futures = [self._table.load(model, order) for model in models]
        try:
            errors = [error for future in futures if (error := future.exception()) is not None]
            for model in models:
                self._followers.settle(model)
        finally:
            for model in models:
                self._table.forget_if_empty(model)
        if len(errors) > 1:
            worst = min(errors, key=_weight)
            kind = (InternalError, InvalidArgumentError, UnavailableError)[_weight(worst)]
            error = kind("".join(f"{str(error).rstrip()}\n" for error in errors))
            error.report = worst.report if isinstance(worst, RepoAgentError) else None
            raise error from worst
        return next((future.result() for future in futures if future.exception()), futures[0].result())

    def settle(self, name: str) -> None:
        """Wait until the ensembles that call a model of that name have followed it."""
        for slot in self._table.named(name):
            self._followers.settle(slot.name)

    def load_all(self, names: Iterable[str]) -> dict[str, str]:
        """Load models by identity, all at once, and return those that failed, and why.

        Ensembles that call them have followed then.
        """
        futures = {name: self._table.load(name, LoadRequest()) for name in names}
        failed = {name: reason for name, future in futures.items() if (reason := _failure(name, future))}
        for name in futures:
            self._followers.settle(name)
        return failed


def _weight(error: BaseException) -> int:
    """A refusal of an agent weighs more than a model that does not load, and that more than a store that fails."""
    return 2 if isinstance(error, UnavailableError) else 1 if isinstance(error, BuildError) else 0


def _check_names(models: Iterable[ModelId]) -> None:
    # A model of a repository has the name of a directory; one of the caller's own could have any.
    for model in models:
        try:
            check_model_name(model.name)
        except RepoAgentError as error:
            text = f"failed to load a model: {shown(model.name)} cannot be the name of a model: {error}"
            logger.error("%s", text)
            raise InvalidArgumentError(text) from error


def _failure(name: str, future: Future[LoadReport]) -> str:
    try:
        future.result()
    except RepoAgentError as error:
        return str(error).rstrip("; \n")  # The slot has logged it.
    except Exception:
        logger.exception("loading model '%s' failed unexpectedly", name)
        return f"loading '{name}' failed unexpectedly"
    return ""
