"""The place of one model in the server: what is loaded there, its states, and the operations on it, one at a time."""

import logging
import threading
from concurrent.futures import Future

from repoagent.api.report import LoadReport
from repoagent.audit import current_actor
from repoagent.errors import RepoAgentError, UnavailableError
from repoagent.serving.lifecycle.load_attempt import LoadAttempt, LoadRequest, PendingLoad, SlotContext, poll_failure
from repoagent.serving.lifecycle.load_pool import SerialQueue
from repoagent.serving.lifecycle.loaded_model import Departure, LoadedModel
from repoagent.serving.lifecycle.model_states import UNLOADED, ModelState, SlotStates, VersionStatus
from repoagent.serving.requests.request import ModelId
from repoagent.serving.versions.reuse import Built
from repoagent.storage.repositories.listing import Fingerprint
from repoagent.storage.repositories.sources import ModelSource

logger = logging.getLogger(__name__)


class ModelSlot:
    """One model. Reading is possible from any thread at any time; loads and unloads wait for each other, in order."""

    def __init__(self, name: str, context: SlotContext, queue: SerialQueue) -> None:
        self.id = ModelId.of(name)
        self.name: str = self.id
        self.loaded: LoadedModel | None = None
        """What serves now. Replaced as a whole; look at it once per request."""
        self.report: LoadReport | None = None
        """The report of the last load that was tried."""
        self.explicit = False
        """Whether it was asked for by name, rather than by an ensemble that needs it."""
        self.composed = False
        """Whether the model that was last tried is an ensemble."""
        self.failed = False
        """Whether the last load failed, and nothing has been unloaded since."""
        self.leases = 0
        """How many holders rely on its staying loaded."""
        self.attempted: Fingerprint | None = None
        """The fingerprint of the source at the last load from a repository, whether it succeeded or not."""
        self._context = context
        self._queue = queue
        self._lock = threading.Lock()
        self._released = threading.Condition(self._lock)
        self._pending: set[PendingLoad] = set()
        self._unloads = 0
        """How many unloads have been asked for and have not ended."""
        self.states = SlotStates(name, self._lock)

    # -- reading ------------------------------------------------------------------------------------------------

    def statuses(self) -> list[tuple[int | None, VersionStatus]]:
        return self.states.statuses()

    @property
    def present(self) -> bool:
        """Whether it is loaded, or its versions are on their way or failed: it has not been unloaded."""
        return self.loaded is not None or any(
            version is not None and status.state is not ModelState.UNLOADING and status.reason != UNLOADED
            for version, status in self.states.statuses()
        )

    @property
    def empty(self) -> bool:
        """Nothing is or was loaded here, and nothing is about to be."""
        with self._lock:
            return self.loaded is None and not self._pending and not self.states.statuses()

    @property
    def gone(self) -> bool:
        """Nothing is loaded here, on its way in or out, or about to be; a load may have failed."""
        with self._lock:
            states = {status.state for _, status in self.states.statuses()}
            return self.loaded is None and not self._pending and states <= {ModelState.UNAVAILABLE}

    # -- orders -------------------------------------------------------------------------------------------------

    def load(self, order: LoadRequest) -> Future[LoadReport]:
        """Queue a load; the result is its report, or the error that a client is to see."""
        with self._lock:
            pending = PendingLoad(follows_unload=self._unloads > 0, version=order.version)
            self._pending.add(pending)
        try:
            future = self._queue.submit(lambda: self._load(order, pending))
        except RepoAgentError:
            self._over(pending)
            raise
        future.add_done_callback(lambda _: self._over(pending))  # Also of one that never had its turn.
        return future

    def _over(self, pending: PendingLoad) -> None:
        with self._lock:
            self._pending.discard(pending)

    def unload(self, *, force: bool = False, reason: str = UNLOADED) -> Future[threading.Event]:
        """Queue an unload, and cancel the loads that were asked for before; the result is set once the model is gone.

        A load that was asked for while another unload had not ended is not cancelled: this caller does not mean that
        one. It is done, and this unload waits for it. A model that is leased when its turn comes stays, and the future
        raises UnavailableError, unless ``force``. With another ``reason`` than a caller's wish the model must not be
        used: then every load that has not ended is cancelled.
        """
        with self._lock:
            self._unloads += 1
            for pending in self._pending:
                if reason != UNLOADED or not pending.follows_unload:
                    pending.cancel(reason)
        try:
            # It frees what loads may be waiting for, and a model that must not be used any more cannot wait for them.
            future = self._queue.submit(lambda: self._unload(force=force, reason=reason), urgent=True)
        except RepoAgentError:
            self._unload_over()
            raise
        future.add_done_callback(lambda _: self._unload_over())
        return future

    def _unload_over(self) -> None:
        with self._lock:
            self._unloads -= 1

    def unload_version(self, version: int) -> Future[threading.Event | None]:
        """Queue the unload of one version, and cancel its loads; the result is set once it is gone.

        The others go on as they are. The last one stays, and the result is None: the model is to be unloaded.
        """
        with self._lock:
            for pending in self._pending:
                if pending.version == version:
                    pending.cancel(UNLOADED)
        return self._queue.submit(lambda: self._unload_version(version), urgent=True)

    def evict(self) -> Future[threading.Event]:
        """Queue an unload that makes room for others, which cancels nothing.

        A model that is leased when its turn comes, that was loaded by its name, or that an ensemble calls stays,
        and the future raises UnavailableError.
        """
        return self._queue.submit(self._evict)

    def follow_members(self) -> Future[None]:
        """Queue, for an ensemble: rebuild it if its members have changed; unload it if they do not fit any more."""
        return self._queue.submit(self._follow_members)

    def settled(self) -> Future[None]:
        """Done when everything that was queued before is."""
        return self._queue.submit(lambda: None)

    def lease(self) -> bool:
        """Keep the model loaded until :meth:`release`; False if it is not loaded."""
        with self._lock:
            if self.loaded is None:
                return False
            self.leases += 1
            return True

    def release(self) -> None:
        """Give one lease back."""
        with self._lock:
            self.leases -= 1
            self._released.notify_all()

    def wait_released(self, loaded: LoadedModel) -> bool:
        """Wait until ``loaded`` is not leased any more; False if it is not what is loaded here any more."""
        with self._lock:
            self._released.wait_for(lambda: not self.leases or self.loaded is not loaded)
            return self.loaded is loaded

    def refuse_if_leased(self) -> None:
        """Raise ``UnavailableError`` if the model is leased: it must stay loaded."""
        if self.leases:
            raise UnavailableError(
                f"failed to unload '{self.name}': it is leased by {self.leases} holder(s); unload it when they have "
                "let go of it"
            )

    def cancel(self, reason: str = UNLOADED) -> None:
        """Cancel every load that has not ended."""
        with self._lock:
            for pending in self._pending:
                pending.cancel(reason)

    def abandon(self, error: RepoAgentError) -> None:
        """End what is queued, and what is under way for those who wait for it, with ``error``."""
        self._queue.abandon(error)

    # -- on the pool, one at a time -------------------------------------------------------------------------------

    def _load(self, order: LoadRequest, pending: PendingLoad) -> LoadReport:
        try:
            report = self._load_if_needed(order, pending)
        except RepoAgentError as error:
            self.failed = not pending.cancelled.is_set()
            if error.report is None:  # else the loader has recorded it
                result = "cancelled" if pending.cancelled.is_set() else "failed"
                self._context.audit.record("load", result, {"model": self.name, "error": str(error).rstrip()})
            logger.error("%s", str(error).rstrip())  # Texts of Triton's, and of backends, end with a new line.
            raise
        finally:
            self._context.dependencies.forget(self.name)
            self._over(pending)
        self.explicit |= not order.needed
        self.failed = False
        return report

    def _load_if_needed(self, order: LoadRequest, pending: PendingLoad) -> LoadReport:
        if pending.cancelled.is_set():
            raise pending.outdated(self.name)
        current = self.loaded
        if order.needed and current is not None and current.overridden:
            return current.chain.report
        order = order.beside(current, self.name)
        source, fingerprint = self._find(order)
        override = order.config
        key = (source.location, fingerprint, override and override.SerializeToString(deterministic=True))
        if current is not None and current.key == key and not current.broken and order.covered_by(current):
            if not order.needed:
                self._context.audit.record("load", "unchanged", {"model": self.name})
                self._context.changed(self.name)  # It may be the only one of its name by now.
            return current.chain.report
        return self._replace(source, order, key, pending)

    def _find(self, order: LoadRequest) -> tuple[ModelSource, Fingerprint]:
        try:
            source = self._context.source(self.id, order)
        except RepoAgentError as error:
            raise poll_failure(self.name, error) from error
        try:
            fingerprint = source.fingerprint()
        except RepoAgentError as error:  # There is such a model, but not one that can be read.
            if self.loaded is None:
                self.states.start_loading()
                self.states.move(None, ModelState.UNAVAILABLE, str(error))
            raise poll_failure(self.name, error) from error
        if order.files is None:
            self.attempted = fingerprint
        return source, fingerprint

    def _replace(self, source: ModelSource, order: LoadRequest, key: object, pending: PendingLoad) -> LoadReport:
        logger.info("loading: %s", self.name)
        try:
            model, built = LoadAttempt(self, self._context, order, pending).run(source, key)
        except RepoAgentError as error:
            error.report = self.report
            raise
        self._switch(model, built)
        return model.chain.report

    def _switch(self, model: LoadedModel, built: Built) -> None:
        """Put ``model`` in the place of the old one. From here on nothing can fail."""
        built.commit()
        with self._lock:
            old, self.loaded = self.loaded, model
            self._released.notify_all()
        for version in model.versions:
            self.states.make_ready(version, model)
        leaving = old.without(model) if old is not None else None
        if old is not None and leaving is not None:
            self._let_go(old, leaving)
        if not any(served.keeps_files for served in model.versions.values()):
            model.chain.files_no_longer_needed()
        model.chain.complete()
        self.report = model.chain.report
        logger.info("successfully loaded '%s'", self.name)
        self._context.dependencies.adopt(self.name)
        if old is not None and leaving is not None:
            self._finish(old, leaving)
        self._context.changed(self.name)

    def show(self, model: LoadedModel | None) -> None:
        """Serve ``model``, or nothing: for a process whose models another one loads, and lets go of."""
        with self._lock:
            old, self.loaded = self.loaded, model
            self._released.notify_all()
        for version in model.versions if model is not None else ():
            assert model is not None
            self.states.make_ready(version, model)
        if old is not None:
            self.states.leave(old)
            self.states.gone(old, UNLOADED)

    def _follow_members(self) -> None:
        old, builder = self.loaded, self._context.builder
        if old is None or not builder.outdated(old.versions, self.id.namespace):
            return
        try:
            model = old.with_versions(builder.rebuild(old.versions, self.id.namespace))
        except RepoAgentError as error:
            logger.error("unloading ensemble '%s', which its members do not fit any more: %s", self.name, error)
            self.orphan()
            self._unload(force=True, reason=str(error))
            self._context.changed(self.name)
            return
        self.loaded = model
        self.states.own(model.versions, model)
        leaving = old.without(model)
        leaving.retire()
        self._context.retirements.begin(leaving, tell_agents=False)
        logger.info("ensemble '%s' follows its members", self.name)
        self._context.changed(self.name)

    def orphan(self) -> None:
        """Note, before an ensemble goes because of its members, that it is to come back with them."""
        loaded = self.loaded
        if loaded is not None and not loaded.overridden:
            self._context.dependencies.orphan(self.name, loaded.members, explicit=self.explicit)

    def _unload(self, *, force: bool, reason: str) -> threading.Event:
        with self._lock:
            if not force:
                self.refuse_if_leased()
            old, self.loaded = self.loaded, None
            self._released.notify_all()
        self.explicit = self.failed = False
        if old is None:
            done = threading.Event()
            done.set()
            return done
        leaving = old.without(None)
        self._let_go(old, leaving)
        return self._finish(old, leaving, reason)

    def _unload_version(self, version: int) -> threading.Event | None:
        old = self.loaded
        if old is None or version not in old.versions:
            done = threading.Event()
            done.set()
            return done
        model = old.without_version(version)
        if model is None:
            return None
        what = {"model": self.name, "version": version}
        self._context.audit.record("unload", "started", what)
        with self._lock:
            self.loaded = model
            self._released.notify_all()
        self.states.own(model.versions, model)
        leaving = old.without(model)
        self.states.leave(old)
        leaving.retire()
        self._context.changed(self.name)

        actor = current_actor()

        def left() -> None:
            self.states.gone(old, UNLOADED)
            logger.info("successfully unloaded '%s' version %d", self.name, version)
            self._context.audit.record("unload", "unloaded", what, actor)

        return self._context.retirements.begin(leaving, left, tell_agents=False)

    def _evict(self) -> threading.Event:
        if self.explicit or self._context.dependencies.users(self.name):
            raise UnavailableError(f"model '{self.name}' is needed again")
        return self._unload(force=False, reason=UNLOADED)

    def _let_go(self, old: LoadedModel, leaving: Departure) -> None:
        self.states.leave(old)
        leaving.retire()
        old.chain.unload()

    def _finish(self, old: LoadedModel, leaving: Departure, reason: str = UNLOADED) -> threading.Event:
        def gone() -> None:
            self.states.gone(old, reason)
            logger.info("successfully unloaded '%s'", self.name)

        return self._context.retirements.begin(leaving, gone)
