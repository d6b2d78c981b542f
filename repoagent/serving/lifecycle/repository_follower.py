"""Comparing the repositories with what is loaded."""

import logging
import threading
from collections.abc import Callable, Container, Iterable
from typing import Final

from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.lifecycle.repository_set import RepositorySet
from repoagent.serving.lifecycle.unloader import Unloader

logger = logging.getLogger(__name__)


class Poller:
    """Calls ``poll`` every ``seconds`` until it is stopped. What ``poll`` raises is logged and does not end it.

    ``task`` names the work in the log.
    """

    def __init__(self, poll: Callable[[], None], seconds: float, task: str = "polling the model repositories") -> None:
        self._poll = poll
        self._seconds = seconds
        self._task = task
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="repoagent-poll", daemon=True)

    def start(self) -> None:
        """Begin; the first poll comes after one interval."""
        self._thread.start()

    def _run(self) -> None:
        while not self._stopping.wait(self._seconds):
            try:
                self._poll()
            except RepoAgentError as error:
                if not self._stopping.is_set():  # else its loads were cancelled, or refused
                    logger.error("%s failed: %s", self._task, error)
            except Exception:
                logger.exception("%s failed", self._task)

    def end(self) -> None:
        """Let no further poll begin."""
        self._stopping.set()

    def wait(self, timeout: float) -> None:
        """After :meth:`end`: wait up to ``timeout`` seconds for a poll that is under way."""
        if self._thread.is_alive():
            self._thread.join(timeout)


_LONGEST_SECONDS: Final = 300.0


class RetryPauses:
    """Pauses that double from one failure to the next, counted in polls: none, 1, 3, 7, ... up to five minutes.

    What failed may have been a key server that was down for a second. Not thread-safe: one poll runs at a time.
    """

    def __init__(self, poll_seconds: float) -> None:
        self._longest = max(1, int(_LONGEST_SECONDS / poll_seconds))
        self._failures: dict[str, int] = {}
        self._left: dict[str, int] = {}

    def due(self, model: str) -> bool:
        """A poll sees that the last load of ``model`` failed: whether to try again now."""
        left = self._left.get(model, 0)
        if left:
            self._left[model] = left - 1
            return False
        failures = self._failures[model] = self._failures.get(model, 0) + 1
        self._left[model] = min(2**failures - 1, self._longest)
        return True

    def forget_others(self, failed: Container[str]) -> None:
        """The models that are not in ``failed`` begin at the beginning when they fail again."""
        for model in [model for model in self._failures if model not in failed]:
            del self._failures[model], self._left[model]


class Follower:
    """Makes ``table`` follow ``repositories``; ``load_all`` loads models and returns when all are done."""

    def __init__(
        self,
        table: ModelTable,
        repositories: RepositorySet,
        unloader: Unloader,
        load_all: Callable[[Iterable[str]], object],
        pauses: RetryPauses,
    ) -> None:
        self._table = table
        self._repositories = repositories
        self._unloader = unloader
        self._load_all = load_all
        self._pauses = pauses
        self._reasons: frozenset[str] = frozenset()

    def follow(self) -> None:
        """Load what is new or changed, unload what is gone; return when everything is done.

        A model whose load failed is tried again when its files change, an ensemble when anything does, and both after
        pauses that grow. The models of a repository that cannot be listed stay as they are. If this raises, a
        repository could never be listed, and nothing was done.
        """
        listing = self._repositories.listing()
        self._note(reason for reason in listing.values() if reason)
        there = [name for name, reason in sorted(listing.items()) if not reason]
        changed: list[str] = [name for name in there if self._changed(name)]
        changed += self._due_again(set(there).difference(changed))
        known = set(listing)
        for slot in [slot for slot in self._table.slots() if slot.name not in known]:
            if slot.loaded is not None:
                self._unload_gone(slot.name)
            self._table.forget_if_gone(slot.name)
        if changed:
            changed += self._failed_ensembles(set(there).difference(changed))
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

    def _due_again(self, unchanged: Iterable[str]) -> list[str]:
        slots = (self._table.get(name) for name in sorted(unchanged))
        failed = [slot.name for slot in slots if slot is not None and slot.failed]
        self._pauses.forget_others(failed)
        return [name for name in failed if self._pauses.due(name)]

    def _unload_gone(self, name: str) -> None:
        try:
            self._unloader.unload(name, wait=False)
        except UnavailableError as error:
            logger.warning("model '%s' is gone from the repositories: %s", name, error)

    def _failed_ensembles(self, names: Iterable[str]) -> list[str]:
        """Those of ``names`` that are ensembles and not loaded: what they lack may be there now."""
        slots = (self._table.get(name) for name in names)
        return [slot.name for slot in slots if slot is not None and slot.composed and slot.loaded is None]
