"""Models that are loaded when a request needs them, make room for each other, and go when none does.

A model counts with the size of its files; that is known before it is loaded, and what a loaded model takes is near it.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final

from repoagent.audit import Actor, AuditError, acting_as
from repoagent.errors import (
    CancelledError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    RepoAgentError,
    UnavailableError,
    causes,
)
from repoagent.serving.ensembles.plan import Dependencies
from repoagent.serving.lifecycle.load_attempt import LoadRequest
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.lifecycle.repository_set import RepositorySet
from repoagent.serving.requests.request import InferRequest, ModelId
from repoagent.serving.requests.senders import answer_error
from repoagent.serving.versions.ensemble_builder import ForbiddenStepError
from repoagent.storage.repositories.listing import Fingerprint

logger = logging.getLogger(__name__)

_REFUSALS: Final = 64
"""How many clients are remembered that may not have a model loaded: its chain does not run for them again."""


@dataclass(slots=True)
class _Entry:
    """A model that was loaded on demand, or is about to be."""

    size: int
    loaded_ms: int = 0
    """When its load ended, by the clock on the wall; 0 before that."""


class OnDemand:
    """Loads models that are in a repository, and unloads those that were used least lately when ``budget`` bytes are
    used up (None: never). Models that were loaded explicitly are not touched, and do not count.

    With ``on_request`` requests load models; without, only leases do. Every method may be called from any thread.
    """

    def __init__(
        self,
        table: ModelTable,
        dependencies: Dependencies,
        repositories: RepositorySet,
        *,
        budget: int | None = None,
        on_request: bool = False,
    ) -> None:
        self._table = table
        self._dependencies = dependencies
        self._repositories = repositories
        self._budget = budget
        self._on_request = on_request
        self._lock = threading.Lock()
        self._room = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        self._starting: dict[str, Future[None]] = {}
        self._failed: dict[str, tuple[Fingerprint, RepoAgentError]] = {}
        self._forbidden: dict[str, deque[tuple[Fingerprint, ForbiddenStepError]]] = {}
        """What the clients that asked last may not have loaded; others may."""

    # -- asking ---------------------------------------------------------------------------------------------------

    def offers(self, name: str) -> bool:
        """Whether a request for a model that cannot take one now would load it: a repository has it."""
        if not self._on_request:
            return False
        try:
            model = self._identify(name)
            slot = self._table.get(model)
            if slot is not None and slot.loaded is not None:
                return False
            self._repositories.find(model)
        except RepoAgentError:
            return False
        return True

    def _identify(self, name: str) -> str:
        """The model that ``name`` means; raises ``InvalidArgumentError`` if there are several."""
        slot = self._table.meant(name)
        if slot is not None:
            return slot.name
        models = self._repositories.ids(name)
        if len(models) > 1:
            raise InvalidArgumentError(
                f"There are {len(models)} models '{name}' in the repositories: load the one that is meant with its "
                "namesakes, or give it another name"
            )
        return models[0] if models else name

    def start(self, name: str, asker: Actor | None = None) -> "Future[None]":
        """Begin to load a model, or join those who wait for it. The result is None once it is loaded, or the error.

        ``asker`` is the client that needs it, whose rights count; None for the server itself.

        A model whose load failed is not tried again before its files change, or it is loaded explicitly.

        Raises:
            InvalidArgumentError: there are several models of that name.
        """
        name = self._identify(name)
        with self._lock:
            future = self._starting.get(name)
            if future is not None:
                return future
            future = self._starting[name] = Future()
        thread = threading.Thread(
            target=self._run, args=(name, future, asker), name=f"repoagent-demand-{name}", daemon=True
        )
        try:
            thread.start()
        except RuntimeError as error:
            self._end(name)
            future.set_exception(UnavailableError(f"no thread to load model '{name}' can be started: {error}"))
        return future

    def submit(self, request: InferRequest, submit: Callable[[InferRequest], None]) -> None:
        """Load the model of ``request`` and then ``submit`` it; if that fails, its sender hears. Returns at once."""

        def loaded(load: "Future[None]") -> None:
            error = load.exception()
            if error is None:
                submit(request)
            elif (forbidden := forbidden_step(error)) is not None and not _same(forbidden.actor, request.asker):
                self.submit(request, submit)  # That was the load of another client.
            else:
                answer_error(request, error if isinstance(error, RepoAgentError) else InternalError(str(error)))

        try:
            load = self.start(request.model_name, request.asker)
        except RepoAgentError as error:
            answer_error(request, error)
        else:
            load.add_done_callback(loaded)

    def load(self, name: str, asker: Actor | None = None) -> None:
        """The same as :meth:`start`, and wait for it.

        Raises:
            ForbiddenStepError: ``asker`` may not have it loaded.
            RepoAgentError: it cannot be loaded.
        """
        while True:
            try:
                return self.start(name, asker).result()
            except RepoAgentError as error:  # If it was forbidden, then perhaps to another client.
                if (forbidden := forbidden_step(error)) is None or _same(forbidden.actor, asker):
                    raise

    @contextmanager
    def lease(self, name: str) -> Iterator[None]:
        """Keep a model from being unloaded, to make room or on request; load it first if it is not.

        It can be reloaded: what the holder relies on is the name.

        Raises:
            NotFoundError: no repository has it.
            RepoAgentError: it cannot be loaded, or there is no room for it.
        """
        while (slot := self._table.meant(name)) is None or not slot.lease():
            self.start(name).result()
        try:
            yield
        finally:
            slot.release()

    def forget(self, name: str) -> None:
        """Someone loads or unloads the model explicitly: it is not ours any more, and may be tried again."""
        with self._lock:
            every = (*self._entries, *self._failed, *self._forbidden)
            for known in [known for known in every if name in (known, ModelId.of(known).name)]:
                self._entries.pop(known, None)
                self._failed.pop(known, None)
                self._forbidden.pop(known, None)

    def unload_idle(self, seconds: float) -> None:
        """Unload every model that was loaded on demand and has had no request for ``seconds``."""
        before = _now_ms() - int(seconds * 1000)
        with self._lock:
            candidates = [name for name in self._entries if self._takes_room(name) and self._idle(name)]
            idle = [name for name in candidates if self._last_used_ms(name) < before]
        with acting_as(Actor("idle")):
            for name in idle:
                self._evict(name, f"it had no request for {seconds:g} seconds")

    # -- loading --------------------------------------------------------------------------------------------------

    def _run(self, name: str, future: "Future[None]", asker: Actor | None) -> None:
        try:
            with acting_as(asker or Actor("on-demand")):
                self._load(name, asker)
        except Exception as error:
            self._end(name)
            future.set_exception(error)
        else:
            self._end(name)
            future.set_result(None)

    def _end(self, name: str) -> None:
        with self._lock:
            del self._starting[name]

    def _load(self, name: str, asker: Actor | None) -> None:
        try:
            fingerprint = self._repositories.find(name).fingerprint()
        except NotFoundError as error:
            raise NotFoundError(f"Request for unknown model: '{name}' is not found") from error
        before, failure = self._failed.get(name, (None, None))
        if failure is not None and before == fingerprint:
            raise UnavailableError(f"{str(failure).rstrip()} (not tried again before its files change)")
        for before, refusal in self._forbidden.get(name, ()):
            if before == fingerprint and _same(refusal.actor, asker):
                raise refusal
        self._reserve(name, fingerprint.size)
        try:
            self._table.load(name, LoadRequest(needed=True)).result()
        except RepoAgentError as error:
            with self._lock:
                self._entries.pop(name, None)
                # Nothing is wrong with a model that was unloaded, or whose load could not be recorded.
                if (forbidden := forbidden_step(error)) is not None:
                    self._forbidden.setdefault(name, deque(maxlen=_REFUSALS)).append((fingerprint, forbidden))
                elif not isinstance(error, CancelledError | AuditError):
                    self._failed[name] = (fingerprint, error)
            raise
        with self._lock:
            if name in self._entries:
                self._entries[name].loaded_ms = _now_ms()
        for member in self._dependencies.members(name):
            self._adopt(member)

    def _adopt(self, name: str) -> None:
        """Count a model that came with an ensemble, and its own members, if it has any."""
        with suppress(RepoAgentError):  # It lies in no repository any more, so it cannot come back: leave it alone.
            size = self._repositories.find(name).fingerprint().size
            with self._lock:
                self._entries.setdefault(name, _Entry(size, _now_ms()))
        for member in self._dependencies.members(name):
            self._adopt(member)

    # -- making room ----------------------------------------------------------------------------------------------

    def _reserve(self, name: str, size: int) -> None:
        """Note ``size`` bytes for a model, after unloading others if need be; ``UnavailableError`` without room."""
        with self._room:
            while (victim := self._victim(name, size)) is not None:
                self._evict(victim, "to make room")
            with self._lock:
                self._entries[name] = _Entry(size)

    def _victim(self, name: str, size: int) -> str | None:
        """The model to unload next so that ``name`` fits; None if it does."""
        if self._budget is None:
            return None
        if size > self._budget:
            raise UnavailableError(
                f"model '{name}' has files of {size} bytes, more than the whole memory budget of {self._budget}"
            )
        with self._lock:
            others = {
                other: entry for other, entry in self._entries.items() if other != name and self._takes_room(other)
            }
            used = sum(entry.size for entry in others.values())
            if used + size <= self._budget:
                return None
            idle = [other for other in others if self._idle(other)]
            if not idle:
                raise UnavailableError(
                    f"no room for model '{name}' ({size} bytes): models that are leased, loading or answering requests "
                    f"take {used} of the {self._budget} bytes of the memory budget; try again later"
                )
            return min(idle, key=self._last_used_ms)

    def _takes_room(self, name: str) -> bool:
        slot = self._table.get(name)
        return name in self._starting or (slot is not None and slot.loaded is not None and not slot.explicit)

    def _idle(self, name: str) -> bool:
        slot = self._table.get(name)
        loaded = slot.loaded if slot is not None else None
        if slot is None or loaded is None or loaded.running or slot.leases:
            return False
        return name not in self._starting and not self._dependencies.users(name)

    def _last_used_ms(self, name: str) -> int:
        slot = self._table.get(name)
        loaded = slot.loaded if slot is not None else None
        served = loaded.versions.values() if loaded is not None else ()
        entry = self._entries.get(name)  # it may have gone meanwhile, and so may its versions
        loaded_ms = entry.loaded_ms if entry is not None else 0
        return max((loaded_ms, *(version.last_used_ms for version in served)))

    def _evict(self, name: str, reason: str) -> None:
        logger.info("unloading '%s': %s", name, reason)
        with self._lock:
            slot = self._table.get(name)
            entry = self._entries.pop(name, None)
        if entry is None or slot is None:
            return  # Someone has just taken it over with an explicit load.
        try:
            slot.evict().result().wait()
        except UnavailableError:  # Someone leased it before its turn came, or loaded it or an ensemble that needs it.
            with self._lock:
                self._entries.setdefault(name, entry)


def forbidden_step(error: BaseException) -> ForbiddenStepError | None:
    """Why it was a matter of the client's rights; None if it was not."""
    return next((cause for cause in causes(error) if isinstance(cause, ForbiddenStepError)), None)


def _same(one: Actor, other: Actor | None) -> bool:
    """Whether both are one client with the same rights: these may have changed since."""
    return other is not None and one.client == other.client and one.manages == other.manages


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
