"""Comparing the repositories with what is loaded."""

import logging
from collections.abc import Callable, Iterable

from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.lifecycle.unloader import Unloader
from repoagent.serving.repositories.repository_set import RepositorySet

__all__ = ["Follower"]

logger = logging.getLogger(__name__)


class Follower:
    """Makes ``table`` follow ``repositories``; ``load_all`` loads models and returns when all are done."""

    def __init__(
        self,
        table: ModelTable,
        repositories: RepositorySet,
        unloader: Unloader,
        load_all: Callable[[Iterable[str]], object],
    ) -> None:
        self._table = table
        self._repositories = repositories
        self._unloader = unloader
        self._load_all = load_all
        self._reasons: frozenset[str] = frozenset()

    def follow(self) -> None:
        """Load what is new or changed, unload what is gone; return when everything is done.

        A model whose load failed is tried again when its files change, an ensemble when anything does. The models of
        a repository that cannot be listed stay as they are.

        Raises:
            RepoAgentError: a repository could never be listed; then nothing was done.
        """
        listing = self._repositories.listing()
        self._note(reason for reason in listing.values() if reason)
        changed: list[str] = [name for name, reason in sorted(listing.items()) if not reason and self._changed(name)]
        known = set(listing)
        for name in [slot.name for slot in self._table.slots() if slot.loaded is not None and slot.name not in known]:
            self._unload_gone(name)
        if changed:
            changed += self._failed_ensembles(known.difference(changed))
        self._load_all(changed)

    def _note(self, reasons: Iterable[str]) -> None:
        """Log, once, why some models are left as they are."""
        known, self._reasons = self._reasons, frozenset(reasons)
        for reason in sorted(self._reasons - known):
            logger.warning("polling leaves models as they are: %s", reason)

    def _changed(self, name: str) -> bool:
        slot = self._table.get(name)
        if slot is None or slot.attempted is None:
            return True
        try:
            return self._repositories.find(name).fingerprint() != slot.attempted
        except RepoAgentError as error:
            logger.warning("failed to poll model '%s': %s", name, error)
            return False

    def _unload_gone(self, name: str) -> None:
        try:
            self._unloader.unload(name, wait=False)
        except UnavailableError as error:
            logger.warning("model '%s' is gone from the repositories: %s", name, error)

    def _failed_ensembles(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that are ensembles and not loaded: what they lack may be there now."""
        slots = (self._table.get(name) for name in names)
        return [slot.name for slot in slots if slot is not None and slot.composed and slot.loaded is None]
