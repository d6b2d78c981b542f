"""The loader: a model's directory and configuration in, a chain of agents that have accepted it out."""

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from repoagent.api.hooks import LoadEvent
from repoagent.api.report import LoadReport
from repoagent.audit import NO_AUDIT, Audit
from repoagent.config import ModelConfig, check, copy, read_text
from repoagent.errors import CancelledError, InternalError, RepoAgentError, UnavailableError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.loader.agent_pool import AgentPool, reason_of
from repoagent.loader.attesting import Attesting
from repoagent.loader.auditing import LoadAudit
from repoagent.loader.candidates import AgentSource
from repoagent.loader.chain import LoadedChain
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.loader.converting.registry import Converters
from repoagent.loader.converting.shared import SharedConversions
from repoagent.loader.load_context import CONFIG_FILE, LoadContext, ModelLocation, Progress, Services
from repoagent.loader.load_directories import LoadDirectories
from repoagent.loader.plan import ChainPlanner, ConfigPlanner
from repoagent.loader.plugins import PluginManager
from repoagent.loader.report import ReportBuilder
from repoagent.storage.cache.cache import Cache
from repoagent.storage.repositories.filesystems import TIMEOUT
from repoagent.storage.repositories.sources import ModelSource
from repoagent.storage.secrets.keys import KeyProvider, builtin_providers
from repoagent.storage.workspaces.workspace import WorkspaceRoot

logger = logging.getLogger("repoagent.loader")


class LoadCounter:
    """Counts the loads that run. After :meth:`close` none is let in; others see :attr:`closed` and hurry."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the end has begun."""
        return self._closed

    @contextmanager
    def enter(self) -> Iterator[None]:
        """One load, from here to the end of the block.

        Raises:
            UnavailableError: no more are let in.
        """
        with self._changed:
            if self._closed:
                raise UnavailableError("no model can be loaded any more: the loader is closed")
            self._running += 1
        try:
            yield
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self, timeout: float | None) -> int:
        """Let no one in any more, wait for those inside, and return how many were left after ``timeout`` seconds."""
        with self._changed:
            self._closed = True
            self._changed.wait_for(lambda: self._running == 0, timeout)
            return self._running


class Loader:
    """Loads models through their agents, any number at a time, on the threads of its callers.

    It owns the agents in use, nothing else: ``workspace_root``, ``cache`` and ``plugins`` are closed by who made them,
    after :meth:`close`.

    Args:
        registry: Where agents are found.
        workspace_root: Where loads keep their private directories.
        cache: For agents and downloads; without one nothing is kept between loads.
        planner: Which agents run; by default those that the configuration names.
        plugins: Notified of loads and actions; none if not given.
        key_providers: URI scheme -> provider; by default those that need no plug-in.
        filesystems: Protocol -> ``"module:attribute"`` of a filesystem class, from plug-ins.
        converters: ``(from, to)`` -> ``"module:attribute"`` of a converter.
        model_config_name: ``configs/NAME.pbtxt`` is used instead of ``config.pbtxt`` in models that have it.
        on_unload_request: Called with a model's name and a reason when one of its agents asks for it to be unloaded,
            on a thread of its own, so it may unload the model there and then. Without it, requests are only logged.
        limits: What one load may take.
        config_variables: What ``${NAME}`` stands for in configuration files.
        timeout: Seconds that a server may be silent when an agent downloads something.
        audit: Gets every load and unload, and every use of a key.
        attesting: Makes the receipts of loads.
        shared: Conversions of others.
    """

    def __init__(
        self,
        registry: AgentSource,
        workspace_root: WorkspaceRoot,
        cache: Cache | None = None,
        *,
        planner: ChainPlanner | None = None,
        plugins: PluginManager | None = None,
        key_providers: Mapping[str, KeyProvider] | None = None,
        filesystems: Mapping[str, str] | None = None,
        converters: Mapping[tuple[str, str], str] | None = None,
        model_config_name: str | None = None,
        on_unload_request: Callable[[str, str], None] | None = None,
        converter_settings: ConverterSettings | None = None,
        limits: Limits = DEFAULT_LIMITS,
        config_variables: Mapping[str, str] | None = None,
        timeout: float = TIMEOUT,
        audit: Audit = NO_AUDIT,
        attesting: Attesting | None = None,
        shared: SharedConversions | None = None,
    ) -> None:
        self._workspace_root = workspace_root
        self._planner = planner or ConfigPlanner()
        self._pool = AgentPool(registry.load)
        self._services = Services(
            cache=cache,
            key_providers=builtin_providers() if key_providers is None else key_providers,
            filesystems=filesystems or {},
            converters=Converters(converters or {}),
            converter_settings=converter_settings or ConverterSettings(),
            limits=limits,
            config_variables=config_variables or {},
            timeout=timeout,
            audit=audit,
            attesting=attesting,
            shared=shared or SharedConversions(),
            notify=plugins.notify if plugins is not None else _tell_nobody,
            request_unload=partial(request_unload, on_unload_request),
        )
        self._config_files = [CONFIG_FILE]
        if model_config_name:
            self._config_files.insert(0, f"configs/{model_config_name}.pbtxt")
        self._admission = LoadCounter()
        self._lock = threading.Lock()
        self._living: dict[LoadedChain, None] = {}

    def load(
        self,
        source: ModelSource,
        *,
        override: ModelConfig | None = None,
        cancelled: Callable[[], bool] | None = None,
        on_progress: Callable[[Progress], None] | None = None,
    ) -> LoadedChain:
        """Run the agents of ``source`` up to and including ``LOAD``.

        The caller then owes the chain that is returned one ``complete`` or one ``fail``.

        Args:
            source: The model where its owner put it.
            override: Used instead of the configuration file, agents included; not changed.
            cancelled: Asked between agents and during long steps; true gives the load up.
            on_progress: Called with the progress of agents and downloads, on the thread that works.

        Raises:
            AgentError: an agent cannot be had, or refused the model.
            ConfigError: the configuration does not parse, or makes no sense.
            CancelledError: ``cancelled()`` became true, or :meth:`close` was called.
            RepoAgentError: something else failed: a snapshot, a download, the planner.

        Whatever is raised, every agent has been called and everything private is gone; ``error.report`` lists what ran.
        """
        report = ReportBuilder(source.name)
        report.note(started=datetime.now(UTC).isoformat(timespec="seconds"))
        audit = LoadAudit(self._services.audit, source.name)
        with self._admission.enter(), self._failures(source.name, report, audit):
            audit.started()
            self._tell("load_started", source.name, "started", None)
            load = self._prepare(source, override, self._or_closed(cancelled), on_progress, audit)
            chain = LoadedChain(load, self._pool, report, self._forget)
            with self._lock:
                self._living[chain] = None
            try:
                config = None if load.config is None else copy(load.config)
                chain.run(self._planner.plan(source.name, config, overridden=override is not None))
                if chain.config is not None:
                    self.admit(source.name, chain.config)
            except BaseException as error:
                chain.fail(error)
                raise
            return chain

    def admit(self, model_name: str, config: ModelConfig) -> None:
        """Whether the operator lets ``model_name`` be loaded by ``config``; to be asked again once it is complete.

        Raises:
            RepoAgentError: the planner refuses it.
        """
        self._planner.admit(model_name, config)

    def admit_command(self, model_name: str, command: str | None) -> None:
        """Whether the operator lets the program ``command`` have ``model_name``; None is one that is not known yet.

        Raises:
            RepoAgentError: the planner refuses it.
        """
        self._planner.admit_command(model_name, command)

    def close(self, timeout: float | None = 30.0) -> None:
        """Let no more loads in, cancel those that run, and take every living model through its last actions.

        Loads that have not given up after ``timeout`` seconds are left alone, and logged. Again is fine.
        """
        stuck = self._admission.close(timeout)
        if stuck:
            logger.warning("%d loads did not stop within %s s; their agents will not hear the end", stuck, timeout)
        with self._lock:
            living = list(self._living)
        for chain in reversed(living):
            if chain.settled:
                chain.finish()

    @property
    def workspace_fault(self) -> str | None:
        """Why no load can have a directory on the disk now; None if it can."""
        return self._workspace_root.fault

    @property
    def locks(self) -> list[int]:
        """Descriptors: no start of a loader removes private directories while a process that inherited them lives."""
        return self._workspace_root.locks

    @property
    def private_directories(self) -> tuple[Path, ...]:
        """The workspaces on the disk and in memory, and the cache."""
        cache = self._services.cache
        return (*self._workspace_root.roots, *((cache.path.resolve(),) if cache is not None else ()))

    def agents_in_use(self) -> dict[str, int]:
        """Name of every agent that is alive -> how many chain entries share it."""
        return self._pool.in_use()

    def _prepare(
        self,
        source: ModelSource,
        override: ModelConfig | None,
        cancelled: Callable[[], bool],
        on_progress: Callable[[Progress], None] | None,
        audit: LoadAudit,
    ) -> LoadContext:
        config_file, text = self._config_text(source)
        audit.prepared(source.location, text, override)
        config = copy(override) if override is not None else None
        if config is None and text is not None:
            config = read_text(text, source=config_file)
        if config is not None:
            if source.renamed:
                config.name = source.name
            check(config, model_name=source.name, source="<override>" if override is not None else config_file)
            config.name = config.name or source.name
        workspace = self._workspace_root.new(source.name)
        if not source.is_remote and self._workspace_root.is_plaintext(Path(source.root)):
            workspace.keep_in_memory()  # An earlier load, of an agent before this one in another server, decrypted it.
        return LoadContext(
            ModelLocation(source, text),
            config,
            LoadDirectories(workspace),
            self._services,
            config_file=config_file,
            overridden=override is not None,
            cancelled=cancelled,
            on_progress=on_progress,
            audit=audit,
        )

    def _config_text(self, source: ModelSource) -> tuple[str, str | None]:
        """The configuration file that this model has, by preference, and its text."""
        for name in self._config_files:
            text = self._services.config_text(source, name)
            if text is not None:
                return name, text
        return CONFIG_FILE, None

    def _or_closed(self, cancelled: Callable[[], bool] | None) -> Callable[[], bool]:
        return lambda: self._admission.closed or (cancelled is not None and cancelled())

    @contextmanager
    def _failures(self, model: str, report: ReportBuilder, audit: LoadAudit) -> Iterator[None]:
        """Put the report on what is raised, and notify observers of a load that ended before there was a chain."""
        try:
            yield
        except Exception as error:
            if report.build().outcome == "loading":
                report.end("failed", reason_of(error))
                audit.failed(report.build(), cancelled=isinstance(error, CancelledError))
                self._tell("load_finished", model, "failed", report.build())
            if not isinstance(error, RepoAgentError):
                logger.exception("loading model '%s' failed unexpectedly", model)
                raise _unexpected(error, report) from error
            error.report = report.build()
            raise

    def _tell(self, event: str, model: str, outcome: str, report: LoadReport | None) -> None:
        seconds, error = (report.seconds, report.error) if report is not None else (0.0, None)
        self._services.notify(event, LoadEvent(model, outcome, seconds, error, report))

    def _forget(self, chain: LoadedChain) -> None:
        with self._lock:
            self._living.pop(chain, None)


def _unexpected(error: Exception, report: ReportBuilder) -> InternalError:
    """What is no error of ours (a full disk, a broken planner) as one, so that callers have one kind to catch."""
    wrapped = InternalError(reason_of(error))
    wrapped.report = report.build()
    return wrapped


def _tell_nobody(_event_name: str, _event: object) -> None:
    """There are no plug-ins."""


def request_unload(handler: Callable[[str, str], None] | None, model: str, reason: str) -> None:
    """Call ``handler(model, reason)`` soon, and return at once.

    The agent may be in the middle of a call that an unload has to wait for, so the handler gets a thread of its own.
    """
    if handler is None:
        logger.warning("model '%s' should be unloaded, but this loader has no unload handler: %s", model, reason)
        return
    logger.info("model '%s' is to be unloaded: %s", model, reason)
    threading.Thread(
        target=_handle, args=(handler, model, reason), name=f"repoagent-unload-{model}", daemon=True
    ).start()


def _handle(handler: Callable[[str, str], None], model: str, reason: str) -> None:
    try:
        handler(model, reason)
    except Exception:
        logger.exception("model '%s' could not be unloaded as its agent asked", model)
