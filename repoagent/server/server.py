"""The server of the in-process Server API."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final

from repoagent.api.report import html_table
from repoagent.errors import AgentError, InternalError, InvalidArgumentError, RepoAgentError, UnavailableError, causes
from repoagent.server.at_exit import forget, stop_at_exit
from repoagent.server.enums import LogLevel, MetricFormat, ModelControlMode
from repoagent.server.exposition.agents import AgentMetrics, WorkspaceMetrics
from repoagent.server.exposition.page import Machine, Source, page_text
from repoagent.server.logs import open_log_file, server_log
from repoagent.server.model import Model, ModelDictionary
from repoagent.server.server_options import Options, core_options, metrics_settings
from repoagent.serving.backends.registry import BackendRegistry
from repoagent.serving.core import ServingCore
from repoagent.serving.lifecycle.repository_set import NameMapping
from repoagent.serving.measuring.custom_metrics import REGISTRY
from repoagent.serving.requests.request import ModelId

_GONE: Final = (None, "UNAVAILABLE")


class Server:
    """A model server in this process.

    ``Server(options)`` or ``Server(model_repository=..., ...)`` with the fields of :class:`Options`. Start it before
    and stop it after use, or write ``with Server(...) as server:``; one that still runs when the program ends is
    stopped then. Every method may be called from any thread. ``backends`` can add the program's own backends.

    Raises:
        TypeError: there is no such option.
    """

    def __init__(
        self, options: Options | None = None, *, backends: BackendRegistry | None = None, **fields: Any
    ) -> None:
        if options is not None and not isinstance(options, Options):
            raise TypeError(
                f"Server takes Options or keyword arguments, not {type(options).__name__}: "
                "Server(model_repository='models')"
            )
        self.options = Options(**fields) if options is None else replace(options, **fields)
        self._backends = backends
        self._core: ServingCore | None = None
        self._starting = threading.Lock()
        self._metrics: Callable[[], str] = REGISTRY.text

    def __repr__(self) -> str:
        core = self._core
        if core is None:
            return "<Server, not started>"
        entries = core.index()
        ready = sum(entry.get("state") == "READY" for entry in entries)
        return f"<Server '{self.options.server_id}', {ready} of {len(entries)} models ready>"

    def _repr_html_(self) -> str:
        """What a notebook shows: the models, with their states and reasons."""
        core = self._core
        return html_table(
            repr(self),
            ("model", "version", "state", "reason"),
            [
                [entry["name"], entry.get("version", ""), entry.get("state", "not loaded"), entry.get("reason", "")]
                for entry in (core.index() if core is not None else ())
            ],
        )

    def __enter__(self) -> "Server":
        return self if self._core is not None else self.start()

    def __exit__(self, *exception: object) -> None:
        if self._core is not None:
            self.stop()

    # -- life -----------------------------------------------------------------------------------------------------

    def start(
        self, wait_until_ready: bool = False, polling_interval: float = 0.1, timeout: float | None = None
    ) -> "Server":
        """Load the models that the options name and begin to take requests.

        Args:
            wait_until_ready: Return when :meth:`ready` is true, not just when all loads have ended.
            polling_interval: Seconds between two checks.
            timeout: Seconds to wait at most.

        Raises:
            InvalidArgumentError: the server is started already, or there is no model repository.
            InternalError: a repository cannot be read, or a model failed and ``exit_on_error`` is set.
            UnavailableError: it was not ready in time; it keeps running.
            TypeError: an option has a value of the wrong type.
            InvalidArgumentError: an option has a value that is not valid, or the log file cannot be opened.
        """
        with self._starting:
            if self._core is not None:
                raise InvalidArgumentError("Server already started")
            settings = core_options(self.options)
            _configure_log(self.options)
            core = ServingCore(settings, backends=self._backends)
            self._metrics = _exposition(core, self.options)
            self._core = _start_core(core)
        if wait_until_ready and not _wait(self.ready, polling_interval, timeout):
            raise UnavailableError("Timeout before ready")
        return self

    def stop(self) -> None:
        """Finish running requests and unload every model through its agents. The server can be started again.

        Raises:
            InvalidArgumentError: the server is not started.
            InternalError: ``exit_timeout`` seconds were not enough.
        """
        with self._starting:
            core = self.core
            self._core = None
        try:
            core.stop()
        finally:
            forget(core)

    @property
    def core(self) -> ServingCore:
        """The serving core, for front ends and other code that needs more than this class offers.

        Raises:
            InvalidArgumentError: the server is not started.
        """
        core = self._core
        if core is None:
            raise InvalidArgumentError("Server not started")
        return core

    def _ptr(self) -> int:
        """A number that stands for the running server in this process."""
        return id(self.core)

    # -- the server -----------------------------------------------------------------------------------------------

    def live(self) -> bool:
        """Whether the server runs."""
        return self.core.live()

    def ready(self) -> bool:
        """Whether it accepts requests and, under ``strict_readiness``, every model is ready."""
        return self.core.ready()

    def metadata(self) -> dict[str, Any]:
        """Name, version and extensions, as the KServe v2 protocol gives them."""
        return self.core.metadata()

    def metrics(self, metric_format: MetricFormat = MetricFormat.PROMETHEUS) -> str:
        """All metrics as text, without those that the options turn off."""
        self.core  # noqa: B018 - refuses when not started
        return self._metrics()

    # -- repositories ---------------------------------------------------------------------------------------------

    def register_model_repository(self, path: str, name_mapping: NameMapping | None = None) -> None:
        """Add a repository; EXPLICIT only. Nothing is loaded.

        Args:
            path: Directory or URL.
            name_mapping: Directory in the repository -> name of its model; others keep that of their directory. As
                pairs, a directory can have several names.

        Raises:
            UnsupportedError: the control mode is another one.
            AlreadyExistsError: the repository, or a name in the mapping, is known already.
            InvalidArgumentError: there is no such repository, or the mapping names a model twice.
        """
        self.core.register_repository(path, name_mapping)

    def unregister_model_repository(self, path: str) -> None:
        """Forget a repository; EXPLICIT only. Models that are loaded from it stay loaded.

        Raises:
            UnsupportedError: the control mode is another one.
            InvalidArgumentError: it is not registered.
        """
        self.core.unregister_repository(path)

    def poll_model_repository(self) -> None:
        """Follow changes in the repositories now; POLL only.

        Raises:
            UnavailableError: the control mode is another one.
        """
        core = self.core
        if self.options.model_control_mode is not ModelControlMode.POLL:
            raise UnavailableError("polling is disabled")
        core.poll()

    # -- models ---------------------------------------------------------------------------------------------------

    def model(self, name: str, version: int = -1) -> Model:
        """A model by name. Whether it exists is checked at its first use."""
        self.core  # noqa: B018 - refuses when not started
        return Model(self, name, version)

    def models(self, exclude_not_ready: bool = False) -> ModelDictionary:
        """Every model and version that the repositories have or that was ever loaded, or only those that are ready.

        With ``model_namespacing``, models of one name in several namespaces are called ``NAMESPACE::NAME``.
        """
        entries = self.core.index(exclude_not_ready)
        return ModelDictionary(
            self,
            (
                Model(self, name, int(entry.get("version", -1)), entry.get("state"), entry.get("reason"))
                for name, entry in zip(_clear_names(entries), entries, strict=True)
            ),
        )

    def load(
        self,
        name: str,
        parameters: Mapping[str, str | int | bool | bytes] | None = None,
        *,
        version: int | None = None,
    ) -> Model:
        """Load or reload a model; EXPLICIT only. If it fails, what was loaded before keeps serving.

        Args:
            name: Name of the model.
            parameters: ``"config"``: a configuration in JSON that replaces the model's own; ``"file:PATH"``: the
                bytes of a file, in which case no file of the repository is looked at.
            version: Load this version beside those that are loaded, whatever the version policy is, until the next
                load without one. The model goes through its agents again; unchanged versions keep serving.

        Raises:
            UnavailableError: the control mode is another one.
            InvalidArgumentError: the model could not be loaded, or a parameter is unknown.
            InternalError: an agent refused it; the text has the agent's reason. An agent that failed by mistake is
                its cause, with its traceback.
            NotFoundError: there is no such model, or a key or a file that it needs does not exist. It is an
                InternalError, too.
        """
        core = self.core
        config, files = _load_parameters(parameters or {})
        try:
            core.load(name, config=config, files=files or None, version=version)
        except RepoAgentError as error:
            raise error.with_traceback(None) from _surprise(error)
        return self.model(name, -1 if version is None else version)

    @contextmanager
    def lease(self, name: str) -> Iterator[Model]:
        """Load a model for a ``with`` block, in which it is not unloaded to make room for others; EXPLICIT only.

        After the block it may be unloaded to make room (``Options.memory_budget``), if it was not loaded explicitly.

        Raises:
            NotFoundError: no repository has it.
            UnavailableError: there is no room for it; the control mode is another one and it is not loaded.
            RepoAgentError: it cannot be loaded.
        """
        with self.core.lease(name):
            yield self.model(name)

    def unload(
        self,
        model: str | Model,
        unload_dependents: bool = False,
        wait_until_unloaded: bool = False,
        polling_interval: float = 0.1,
        timeout: float | None = None,
        *,
        version: int | None = None,
    ) -> None:
        """Refuse new requests to a model, and unload it when the last running one has ended; EXPLICIT only.

        Args:
            model: The model or its name.
            unload_dependents: Also unload the models that were loaded for it.
            wait_until_unloaded: Return when it is gone.
            polling_interval: Seconds between two checks.
            timeout: Seconds to wait at most; it then returns without an error.
            version: Unload only this one; no agent is called before the last one goes.

        Raises:
            UnavailableError: the control mode is another one.
        """
        name = model.name if isinstance(model, Model) else model
        self.core.unload(name, unload_dependents=unload_dependents, wait=False, version=version)
        if wait_until_unloaded:
            _wait(lambda: self._unloaded(name, version), polling_interval, timeout)

    def _unloaded(self, name: str, version: int | None = None) -> bool:
        return all(
            entry.get("state") in _GONE
            for entry in self.core.index()
            if name in (entry["name"], ModelId(entry["name"], entry.get("namespace", "")))
            and (version is None or entry.get("version") == str(version))
        )


def _clear_names(entries: Sequence[Mapping[str, str]]) -> list[str]:
    """What each model of an index is called so that it cannot be another one."""
    namespaces: dict[str, set[str]] = {}
    for entry in entries:
        namespaces.setdefault(entry["name"], set()).add(entry.get("namespace", ""))
    return [
        str(ModelId(entry["name"], entry.get("namespace", ""))) if len(namespaces[entry["name"]]) > 1 else entry["name"]
        for entry in entries
    ]


def _start_core(core: ServingCore) -> ServingCore:
    try:
        core.start()
    except InternalError as error:
        raise error.with_traceback(None) from _surprise(error)
    except RepoAgentError as error:
        raise InternalError(f"the server cannot start: {error}") from error
    stop_at_exit(core)
    return core


def _surprise(error: BaseException) -> BaseException | None:
    """What an agent raised by mistake, of the causes of ``error``; the others only show how this server works."""
    of_agents = (one.__cause__ for one in causes(error) if isinstance(one, AgentError))
    return next((one for one in of_agents if one is not None and not isinstance(one, RepoAgentError)), None)


def _exposition(core: ServingCore, options: Options) -> Callable[[], str]:
    """What gives the text of the metrics that ``options`` ask for."""
    if not options.metrics:
        return REGISTRY.text
    agents = AgentMetrics()
    core.observe(agents, "server-metrics")
    sources: list[Source] = [agents, WorkspaceMetrics(core), *([Machine()] if options.cpu_metrics else [])]
    settings = metrics_settings(options)
    return lambda: page_text(core.metrics(), sources, settings)


def _wait(condition: Callable[[], bool], interval: float, timeout: float | None) -> bool:
    """Look at ``condition`` every ``interval`` seconds until it is true, or false for ``timeout`` seconds."""
    deadline = None if timeout is None else time.monotonic() + timeout
    while not condition():
        if deadline is not None and time.monotonic() >= deadline:
            return False
        time.sleep(interval)
    return True


def _load_parameters(parameters: Mapping[str, Any]) -> tuple[str | bytes | None, dict[str, bytes]]:
    config: str | bytes | None = None
    files: dict[str, bytes] = {}
    for name, value in parameters.items():
        if name == "config" and isinstance(value, str | bytes):
            config = value
        elif name.startswith("file:") and isinstance(value, bytes):
            files[name] = value
        else:
            raise InvalidArgumentError(
                f"Unrecognized load parameter '{name}' of type {type(value).__name__}: it must be 'config' with the "
                "JSON text of a configuration, or 'file:PATH' with bytes"
            )
    return config, files


def _configure_log(options: Options) -> None:
    """Each level brings those above it, as in Triton."""
    log = server_log()
    info = options.log_info or options.log_verbose > 0
    warn = options.log_warn or info
    open_log_file(options.log_file)
    log.set_callback(options.log_callback)
    log.set_format(options.log_format)
    log.set_verbose(options.log_verbose)
    log.enable(LogLevel.INFO, info)
    log.enable(LogLevel.WARN, warn)
    log.enable(LogLevel.ERROR, options.log_error or warn)
