"""The loader: a model's directory and configuration in, a chain of agents that have accepted it out."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from repoagent.api.hooks import LoadEvent
from repoagent.api.report import LoadReport
from repoagent.config import ModelConfig, check, copy, read_text
from repoagent.errors import CancelledError, InternalError, RepoAgentError, UnavailableError
from repoagent.loader.agent_pool import AgentPool, reason_of
from repoagent.loader.auditing import LoadAudit
from repoagent.loader.candidates import AgentSource
from repoagent.loader.chain import LoadedChain
from repoagent.loader.load_context import LoadContext, ModelLocation, Progress, Services
from repoagent.loader.plan import ChainPlanner, ConfigPlanner
from repoagent.loader.report import ReportBuilder
from repoagent.storage.repositories.sources import ModelSource
from repoagent.storage.workspaces.workspace import WorkspaceRoot

logger = logging.getLogger("repoagent.loader")


class LoadCounter:
    """Counts the loads that run. After :meth:`close` none is let in; others see :attr:`closed` and hurry."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self.closed = False
        """Whether the end has begun."""

    @contextmanager
    def enter(self) -> Iterator[None]:
        """One load, from here to the end of the block; raises ``UnavailableError`` if no more are let in."""
        with self._changed:
            if self.closed:
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
            self.closed = True
            self._changed.wait_for(lambda: self._running == 0, timeout)
            return self._running


class Loader:
    """Loads models through their agents, any number at a time, on the threads of its callers.

    It owns the agents in use, nothing else: ``workspace_root`` and ``services`` are closed by who made them, after
    :meth:`close`.

    Args:
        registry: Where agents are found.
        workspace_root: Where loads keep their private directories.
        services: What loads use; by default no cache, no plug-ins, and no handler for requests to unload.
        planner: Which agents run; by default those that the configuration names.
    """

    def __init__(
        self,
        registry: AgentSource,
        workspace_root: WorkspaceRoot,
        services: Services | None = None,
        *,
        planner: ChainPlanner | None = None,
    ) -> None:
        self._workspace_root = workspace_root
        self._services = services or Services()
        self._planner = planner or ConfigPlanner()
        self._pool = AgentPool(registry.load)
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
        config_file, text = self._services.chosen_config(source)
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
            workspace,
            self._services,
            config_file=config_file,
            overridden=override is not None,
            cancelled=cancelled,
            on_progress=on_progress,
            audit=audit,
        )

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
