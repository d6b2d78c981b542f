"""The serving core: models come from repositories through their agents, and answer requests."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from repoagent.api.report import LoadReport
from repoagent.audit import Actor, acting_as, current_actor
from repoagent.errors import InternalError, RepoAgentError, UnavailableError, UnsupportedError
from repoagent.loader.assembly import open_loader
from repoagent.loader.loader import Loader
from repoagent.loader.plugins import PluginManager
from repoagent.serving.assembly import (
    AGAIN_SECONDS,
    ControlMode,
    CoreOptions,
    new_model_builder,
    open_repositories,
    pollers,
    startup_failure,
    startup_names,
)
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.ensembles.plan import Dependencies
from repoagent.serving.lifecycle.load_attempt import LoadRequest, SlotContext
from repoagent.serving.lifecycle.load_pool import LoadPool, SerialQueue, give_back_soon, pausing
from repoagent.serving.lifecycle.loaded_model import Retirements
from repoagent.serving.lifecycle.model_slot import ModelSlot
from repoagent.serving.lifecycle.model_table import ModelTable
from repoagent.serving.lifecycle.named_loads import EnsembleFollowers, NamedLoads, load_order
from repoagent.serving.lifecycle.on_demand import OnDemand
from repoagent.serving.lifecycle.repository_follower import Follower, Poller, RetryPauses
from repoagent.serving.lifecycle.repository_set import NameMapping, RepositorySet
from repoagent.serving.lifecycle.unloader import Unloader
from repoagent.serving.queries import CoreQueries, ModelMetrics
from repoagent.serving.reception import Reception, Router, ServerLife, ServerState
from repoagent.serving.tracing.tracer import Tracer
from repoagent.serving.versions.ensemble_builder import EnsembleBuilder
from repoagent.serving.versions.model_builder import ModelBuilder
from repoagent.storage.repositories.url import parse_url

logger = logging.getLogger(__name__)

__all__ = ["ControlMode", "CoreOptions", "ModelMetrics", "ServerState", "ServingCore"]


_UNLOAD_THREADS: Final = 16
"""How many models are unloaded at once. Loads do not count: an unload must not wait for those that hang."""


class ServingCore(Reception, CoreQueries):
    """A model server without a network. Every method may be called from any thread.

    ``start`` it before and ``stop`` it after use, or use it as a context manager. ``loader`` is made from the options
    when it is not given; one that is given is not closed. ``backends`` can hold backends of the caller's own.
    ``make_builder`` makes the builder of versions, as :class:`ModelBuilder` does.

    Raises:
        RepoAgentError: something named by ``options`` is not there or not usable; nothing is left open.
    """

    def __init__(
        self,
        options: CoreOptions,
        *,
        loader: Loader | None = None,
        backends: BackendRegistry | None = None,
        repositories: RepositorySet | None = None,
        make_builder: Callable[..., ModelBuilder] = ModelBuilder,
    ) -> None:
        """The keywords replace parts that are made from the options otherwise. A part is made before what uses it."""
        options.check()
        self.options = options
        self._load_pool, self._unload_pool = (
            LoadPool(size, give_back_soon, patience_seconds=options.limits.load_thread_seconds)
            for size in (options.load_threads, _UNLOAD_THREADS)
        )
        table = ModelTable(self._new_slot)
        dependencies = Dependencies(table.members)
        followers = EnsembleFollowers(table, dependencies)
        with ExitStack() as opened:
            self._plugins = opened.enter_context(PluginManager())
            repositories = repositories or open_repositories(options, self._plugins.registry("filesystems"))
            plugged = self._plugins.registry("backends")
            registry = backends or BackendRegistry(plugged, options.backend_config, options.limits)
            registry.bind(self)
            loader = loader or open_loader(options, self._plugins, opened, self._unload_for_agent)
            ensembles = EnsembleBuilder(Router(table, repositories), dependencies, pausing, options.latencies)
            self._context = SlotContext(
                repositories,
                loader,
                new_model_builder(make_builder, options, registry, loader, ensembles),
                dependencies,
                Retirements(options.drain_timeout_seconds, give_back_soon),
                changed=followers.changed,
                on_progress=options.on_progress,
                audit=options.audit,
            )
            self._resources = opened.pop_all()
        self._loads = NamedLoads(table, repositories, followers)
        self._unloader = Unloader(table, dependencies, self._context.retirements)
        pauses = RetryPauses(options.poll_seconds)
        self._follower = Follower(table, repositories, self._unloader, self._loads.load_all, pauses)
        demand = OnDemand(
            table, dependencies, repositories, budget=options.memory_budget_bytes, on_request=options.on_demand
        )
        Reception.__init__(self, table, demand, Tracer(options.trace, options.trace_suffix), ServerLife())
        CoreQueries.__init__(self, table, repositories, options.server_id, caches=bool(options.cache_config))
        self.audit = options.audit
        """Gets what is done to models."""
        self._pollers = pollers(options, self.poll, demand)
        self._draining = False
        self._start_again: Poller | None = None
        """While a repository could not be listed yet."""

    def _new_slot(self, name: str) -> ModelSlot:
        return ModelSlot(name, self._context, SerialQueue(self._load_pool, self._unload_pool))

    def __enter__(self) -> "ServingCore":
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def observe(self, observer: object, name: str) -> None:
        """Notify ``observer``, an object or module with hooks of ``repoagent.api.hooks``, of loads and agents' actions.

        Raises:
            AlreadyExistsError: there is an observer of that name.
            InvalidArgumentError: it has a hook that does not exist.
        """
        self._plugins.register(observer, name)

    # -- life ----------------------------------------------------------------------------------------------------

    def start(self) -> list[str]:
        """Load what the control mode selects and return the names of the models that failed.

        Raises:
            InternalError: a model failed and ``exit_on_error`` is set; everything has been unloaded again.
            RepoAgentError: a repository cannot be listed, and ``exit_on_error`` is set; else the server is not ready
                until it can.
        """
        self._life.enter(ServerState.STARTING, ServerState.INITIALIZED)
        try:
            failed = self._load_at_start()
        except RepoAgentError as error:
            if self.options.exit_on_error:
                self.stop()
                raise
            logger.error("%s; this server is not ready until that has changed, and loads no model before", error)
            self._start_again = Poller(self._try_again, AGAIN_SECONDS, "the start")
            self._pollers.append(self._start_again)
            failed = {}
        except BaseException:
            self.stop()
            raise
        if failed and self.options.exit_on_error:
            self.stop()
            raise startup_failure(failed)
        self._life.enter(ServerState.READY, ServerState.STARTING)
        for poller in self._pollers:
            poller.start()
        return list(failed)

    def _load_at_start(self) -> Mapping[str, str]:
        return self._loads.load_all(startup_names(self.options, self._context.repositories, self._loads))

    def _try_again(self) -> None:
        try:
            failed = self._load_at_start()
        except RepoAgentError:  # it has been logged
            return
        for name in failed:
            logger.error("failed to load '%s'; serving the others because --exit-on-error=false", name)
        again, self._start_again = self._start_again, None
        if again is not None:
            again.end()
        logger.info("every model repository can be listed: the server has started")

    def begin_drain(self) -> None:
        """Be ready no more and serve on, until :meth:`stop`: balancers look elsewhere before connections close."""
        self._draining = True

    def stop(self) -> None:
        """Refuse new requests, let running ones finish, unload every model through its agents. Twice is once.

        Raises:
            InternalError: ``exit_timeout_seconds`` were not enough.
        """
        if not self._life.begin_exit():
            return
        deadline = time.monotonic() + self.options.exit_timeout_seconds
        for poller in self._pollers:
            poller.end()
        self._context.repositories.hurry()
        in_time = self._unloader.unload_everything(deadline)
        for poller in self._pollers:  # for a poll whose loads have just been cancelled
            poller.wait(max(0.0, deadline - time.monotonic()))
        for pool in (self._unload_pool, self._load_pool):
            pool.close(wait=in_time)
        self._table.abandon()
        self.tracer.close()
        self._life.end()
        if not in_time:
            raise InternalError("Exit timeout expired. Exiting immediately.")
        self._resources.close()

    @property
    def workspace_fault(self) -> str | None:
        """Why no load can have a private directory on the disk now; None if it can."""
        return self._context.loader.workspace_fault

    @property
    def private_directories(self) -> tuple[Path, ...]:
        """Where this process keeps files that no other user may read."""
        return self._context.loader.private_directories

    # -- models --------------------------------------------------------------------------------------------------

    def load(
        self,
        name: str,
        *,
        config: str | bytes | None = None,
        files: Mapping[str, bytes] | None = None,
        version: int | None = None,
    ) -> LoadReport:
        """Load or reload a model, or all models of that name, and return the report of what its agents did.

        If nothing changed since it was loaded, nothing happens and the old report is returned. If it fails, what was
        loaded before goes on serving.

        With ``version`` that one is loaded beside those that are, whatever the version policy is: the model goes
        through its agents again, and its other versions serve on unless their files have changed. The versions stay
        the same until the next load without a version, which goes by the policy again.

        Args:
            name: Name of the model.
            config: A configuration in JSON that replaces the model's own for this load.
            files: Path -> content, with or without Triton's prefix ``file:``; the repository's files are not looked
                at then. Needs ``config``.
            version: Number of a version directory; without ``config`` and ``files``.

        Raises:
            UnavailableError: the control mode is not EXPLICIT, or the server is not ready.
            InternalError: the model does not exist or an agent refused it; the text has the agent's reason.
            InvalidArgumentError: the agents succeeded but the model could not be loaded.
            CancelledError: an unload, or the end of the server, came in between.
        """
        with self._refusals("load", name):
            self._require_explicit()
            order = load_order(name, config, files, version=version, limits=self.options.limits)
            models = self._loads.chosen(name, order)
        self._demand.forget(name)
        return self._loads.load(models, order)

    def unload(
        self, name: str, *, unload_dependents: bool = False, wait: bool = True, version: int | None = None
    ) -> None:
        """Unload a model, or all models of that name; one that is not loaded is fine.

        A load of it that is under way is cancelled.

        Ensembles that call it are unloaded first: they cannot do without it.

        Args:
            name: Name of the model.
            unload_dependents: Also unload the models that it pulled in: the members of an ensemble that nothing asked
                for by name and that no other ensemble calls.
            wait: Return when it is gone; else when no new request reaches it, as Triton does.
            version: Unload only this one, and no agent is called: what the agents made belongs to all versions. The
                last version takes the model with it.

        Raises:
            UnavailableError: the control mode is not EXPLICIT, the server is not ready, or the model is leased
                or an ensemble that calls it.
        """
        with self._refusals("unload", name):
            self._require_explicit()
            if version is not None:
                self._unload_version(name, version, wait=wait)
                return
            for slot in self._table.named(name):
                self._unloader.unload(slot.name, with_members=unload_dependents, wait=wait)
        self._demand.forget(name)

    def _unload_version(self, name: str, version: int, *, wait: bool) -> None:
        for slot in self._table.named(name):
            gone = slot.unload_version(version).result()
            if gone is None:  # the last one: the model goes, and the ensembles that call it before
                self._unloader.unload(slot.name, wait=wait)
            elif wait:
                gone.wait()
        self._loads.settle(name)

    @contextmanager
    def _refusals(self, event: str, model: str) -> Iterator[None]:
        """Record what is refused before it begins."""
        try:
            yield
        except RepoAgentError as error:
            self.audit.record(event, "refused", {"model": model, "error": str(error).rstrip()})
            raise

    def _unload_for_agent(self, name: str, reason: str) -> None:
        """An agent asks for its model to go (a licence has ended): in every control mode, and the index states why.

        Also while the server starts: the agent asks once. While it stops, everything goes anyway.
        """
        if self._life.state not in (ServerState.STARTING, ServerState.READY):
            return
        with acting_as(Actor("agent")):
            # Which of several namesakes it is the agent does not know: what must not be used goes in any case.
            for slot in self._table.named(name):
                self._unloader.unload_for_good(slot.name, f"unloaded, as its agent asked: {reason}")

    def unload_for_good(self, name: str, reason: str) -> None:
        """Unload a model that must not be used any more, in every control mode; the index states ``reason``."""
        self._unloader.unload_for_good(name, reason)

    def reload(self, name: str) -> None:
        """Load a model again, as it was asked for, in every control mode: something of it has broken down.

        Raises:
            RepoAgentError: it cannot be loaded; what is left of it goes on serving.
        """
        slot = self._table.meant(name)
        loaded = slot.loaded if slot is not None else None
        if loaded is None:
            return
        if loaded.origin.files:
            raise UnsupportedError(f"failed to load '{name}': files of a load request are not kept")
        order = LoadRequest(loaded.origin.config, pinned=loaded.origin.pinned)
        self._table.load(name, order).result()

    def _require_explicit(self) -> None:
        if self._life.state is not ServerState.READY:
            raise self._life.not_ready()
        if self.options.control_mode is not ControlMode.EXPLICIT:
            raise UnavailableError("explicit model load / unload is not allowed if polling is enabled")

    def report(self, name: str) -> LoadReport | None:
        """The report of the last load of a model that was tried; None if there was none."""
        slot = self._table.meant(name)
        if slot is None or slot.report is None:
            return None
        return replace(slot.report, size=slot.attempted.size if slot.attempted is not None else 0)

    def attestation(self, name: str, version: str = "") -> bytes | None:
        """The signed receipt of the load that serves a model, or one version of it; None if there is none."""
        slot = self._table.meant(name)
        loaded = slot.loaded if slot is not None else None
        if loaded is None or (version and version not in map(str, loaded.versions)):
            return None
        receipt = loaded.chain.attestation
        return None if receipt is None else receipt.document

    def poll(self) -> None:
        """Compare the repositories with what is loaded: load what is new or changed, unload what is gone.

        A model whose load failed is tried again when its files change, and after pauses that grow. Returns when
        everything is done.

        Raises:
            RepoAgentError: a repository could never be listed; then nothing was done.
        """
        if self._life.state is not ServerState.READY or self._start_again is not None:
            return
        with acting_as(Actor("poll")):
            self._follower.follow()

    def lease(self, name: str) -> AbstractContextManager[None]:
        """For a ``with`` block: the model is loaded, and is not unloaded to make room for others.

        Raises:
            NotFoundError: no repository has it.
            UnavailableError: there is no room for it, or it is not loaded and the control mode is not EXPLICIT.
            RepoAgentError: it cannot be loaded.
        """
        if not self.model_loaded(name):
            self._require_explicit()
        return self._demand.lease(name)

    def offers(self, name: str) -> bool:
        """Whether a request for a model would load it: it is not loaded, and a repository has it."""
        return self._demand.offers(name)

    def load_on_demand(self, name: str) -> None:
        """Have a model loaded as a request of the client that acts on this thread would.

        Raises:
            UnsupportedError: requests load nothing here.
            RepoAgentError: it cannot be loaded.
        """
        if not self.options.on_demand:
            raise UnsupportedError(f"a request for model '{name}' loads nothing: --model-load-on-demand is off")
        if self._life.state is not ServerState.READY:
            raise self._life.not_ready()
        self._demand.load(name, current_actor())

    def register_repository(self, url: str, name_mapping: NameMapping | None = None) -> None:
        """Add a repository; nothing is loaded. ``name_mapping``: directories and names of their models.

        Raises:
            UnsupportedError: the control mode is not EXPLICIT.
            AlreadyExistsError: the repository, or a name in the mapping, is known already.
            InvalidArgumentError: there is no such repository, or the mapping gives a name twice.
        """
        self._require_explicit_repositories("registration")
        self.audit.demand("settings", "accepted", {"setting": "repositories", "add": _shown(url)})
        self._context.repositories.register(url, name_mapping)

    def unregister_repository(self, url: str) -> None:
        """Forget a repository; models that are loaded from it stay.

        Raises:
            UnsupportedError: the control mode is not EXPLICIT.
            InvalidArgumentError: it is not known.
        """
        self._require_explicit_repositories("unregistration")
        self.audit.demand("settings", "accepted", {"setting": "repositories", "remove": _shown(url)})
        self._context.repositories.unregister(url)

    def _require_explicit_repositories(self, action: str) -> None:
        if self.options.control_mode is not ControlMode.EXPLICIT:
            raise UnsupportedError(f"repository {action} is not allowed if model control mode is not EXPLICIT")

    # -- questions -----------------------------------------------------------------------------------------------

    def live(self) -> bool:
        """The server has started and does not stop."""
        return self._life.state is ServerState.READY

    def ready(self) -> bool:
        """The server takes requests and is not about to stop, and the models that count are ready.

        These are ``ready_models``; without such, every model under ``strict_readiness``, else none.
        """
        if not self.live() or self._draining or self._start_again is not None:
            return False
        if self.options.ready_models:
            return all(self.model_loaded(name) for name in self.options.ready_models)
        return not self.options.strict_readiness or self.all_ready()

    def model_ready(self, name: str, version: str = "") -> bool:
        return self.live() and super().model_ready(name, version)


def _shown(url: str) -> str:
    """A repository's URL without a credential."""
    try:
        return parse_url(url).text
    except RepoAgentError:
        return "a URL that cannot be read"
