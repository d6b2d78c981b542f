"""The Python backend: a version directory with a ``model.py`` in it, run in this process or in processes of its own."""

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Final

from repoagent.config import ModelConfig, read_json, write_json
from repoagent.errors import InvalidArgumentError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS
from repoagent.serving.backends.python.model.context import CoreAccess, ModelContext
from repoagent.serving.backends.python.model.instance import completed, started
from repoagent.serving.backends.python.process.child_process import ChildProcess
from repoagent.serving.backends.python.process.instance import ProcessInstance
from repoagent.serving.backends.python.process.supervisor import ProcessSpec, completed_in_child, new_child
from repoagent.serving.backends.python.settings import PythonSettings, program_for, runs_in_process_of_its_own
from repoagent.serving.instances.backend import BackendInstance, BackendModel, InstanceSpec
from repoagent.serving.instances.instance import instance_specs
from repoagent.storage.files.files import ModelFiles

_models: Final = logging.getLogger("repoagent.models")


@dataclass(frozen=True, slots=True)
class _Run:
    """One call of an ``is_ready``."""

    overdue: float
    """When (``time.monotonic``) it has taken too long."""
    result: Future[str] = field(default_factory=Future)
    """Why the instance is not ready; empty if it is."""


class Readiness:
    """``asks`` has the ``is_ready`` of each instance that has one, by the instance's name.

    Each call has a thread. While it runs, other callers share it; none is made beside one that hangs.
    """

    def __init__(self, asks: Mapping[str, Callable[[], bool]], limit_seconds: float) -> None:
        self._asks = asks
        self._limit = limit_seconds
        self._lock = threading.Lock()
        self._runs: dict[str, _Run] = {}
        self._noted: dict[str, str] = {}

    def ready(self) -> bool:
        """Whether all instances are ready; one that does not answer in time is not."""
        runs = {name: self._run(name) for name in self._asks}
        left = max((run.overdue for run in runs.values()), default=0.0) - time.monotonic()
        wait([run.result for run in runs.values()], max(0.0, left))
        outcomes = [self._outcome(name, run) for name, run in runs.items()]  # Each is noted.
        return all(outcomes)

    def _run(self, name: str) -> _Run:
        with self._lock:
            run = self._runs.get(name)
            if run is None or run.result.done():
                run = self._runs[name] = _Run(time.monotonic() + self._limit)
                thread = threading.Thread(target=self._call, args=(name, run), name=f"{name}-is-ready", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # The machine has no thread left; the next call tries again.
                    run.result.set_result(f"is_ready cannot be called: {error}")
            return run

    def _call(self, name: str, run: _Run) -> None:
        try:
            reason = "" if self._asks[name]() else "is_ready returned False"
        except BaseException as error:
            text = error.message if isinstance(error, RepoAgentError) else f"{type(error).__name__}: {error}"
            reason = f"is_ready raised {text}"
        run.result.set_result(reason)

    def _outcome(self, name: str, run: _Run) -> bool:
        reason = run.result.result() if run.result.done() else f"is_ready has not returned for {self._limit:g} s"
        with self._lock:
            news = reason != self._noted.get(name, "")
            self._noted[name] = reason
        if news:  # Probes ask every few seconds, perhaps for days.
            _models.warning("model instance '%s' is %s", name, f"not ready: {reason}" if reason else "ready again")
        return not reason


class PythonBackend:
    """Triton's Python backend protocol: ``TritonPythonModel`` with ``initialize``, ``execute``, ``finalize``.

    By default the code runs inside the server: it starts in milliseconds and shares memory with the core, and it can
    take the server down. A model may have a process per instance instead (parameter ``EXECUTION``), which cannot. It
    runs as many instances as its instance groups ask for, each with modules of its own.
    """

    name: ClassVar[str] = "python"
    platforms: ClassVar[tuple[str, ...]] = ()
    default_model_filename: ClassVar[str] = "model.py"
    keeps_files_open: ClassVar[bool] = True

    def __init__(self, settings: Mapping[str, str]) -> None:
        self._settings = PythonSettings.of(settings)
        self.limits = DEFAULT_LIMITS
        self._core: CoreAccess | None = None

    def gpus(self) -> Sequence[int]:
        """None: a model's code decides for itself what it uses."""
        return ()

    def bind(self, core: CoreAccess) -> None:
        """Set the server that the models run in; they reach other models through it."""
        self._core = core

    def auto_complete(self, config: ModelConfig, files: ModelFiles, version: int) -> None:
        """Let the model's ``auto_complete_config`` fill in what ``config`` leaves open, where the model is going to
        run. Raises ``InternalError`` if the file cannot be run, or the function raised."""
        context, path = self._context(config, files, version)
        given = json.dumps(write_json(config))
        if runs_in_process_of_its_own(config, self._settings):
            result: Any = completed_in_child(self._process_spec(config, context), given)
        else:
            result = completed(path, context, given)
        if result is not None:
            _apply(config, result)

    def load(self, config: ModelConfig, files: ModelFiles, version: int) -> "PythonModel":
        """The file runs once for every instance."""
        context, path = self._context(config, files, version)
        own_process = runs_in_process_of_its_own(config, self._settings)
        process_spec = self._process_spec(config, context) if own_process else None
        return PythonModel(config, context, path, process_spec, self._settings.ready_seconds)

    def _context(self, config: ModelConfig, files: ModelFiles, version: int) -> tuple[ModelContext, Path]:
        """What the model gets to know of itself, and the file to run."""
        assert self._core is not None, "the backend was not bound to a core"
        context = ModelContext(config.name, str(version), files.local_path(str(version)), self._core)
        path = context.model_dir / _file_name(config)
        if not path.is_file():
            raise InvalidArgumentError(f"there is no {version}/{path.name} in model '{config.name}'")
        return context, path

    def _process_spec(self, config: ModelConfig, context: ModelContext) -> ProcessSpec:
        return ProcessSpec(
            program_for(config, context.model_dir.parent, self._settings.environments),
            context.core,
            context.model_name,
            context.model_version,
            str(context.model_dir),
            _file_name(config),
            decoupled=config.model_transaction_policy.decoupled,
            grace_seconds=self._settings.grace_seconds,
            limits=self.limits,
            ahead=self._settings.requests_ahead,
            spin_ns=self._settings.spin_microseconds * 1000,
        )


class PythonModel(BackendModel):
    """One version of a model; with a ``process_spec`` its instances are processes."""

    def __init__(
        self,
        config: ModelConfig,
        context: ModelContext,
        path: Path,
        process_spec: ProcessSpec | None,
        ready_seconds: float,
    ) -> None:
        self._decoupled = config.model_transaction_policy.decoupled
        self._context = context
        self._path = path
        self._process_spec = process_spec
        self._json = json.dumps(write_json(config))
        self._processes: list[ProcessInstance] = []
        self._asking: dict[str, Callable[[], bool]] = {}
        self._readiness = Readiness(self._asking, ready_seconds)
        # All at once: to start is mostly to import, which processes can do at the same time.
        self._started: dict[str, ChildProcess] = {}
        if process_spec is not None:
            self._start(process_spec, [spec.name for spec in instance_specs(config)])

    @property
    def ready(self) -> bool:
        """Whether there is a process that can execute; always true of a model in this process."""
        return not self._processes or any(process.supervisor.child is not None for process in self._processes)

    @property
    def broken(self) -> bool:
        """Whether the process of an instance could not be started again."""
        return any(process.supervisor.given_up for process in self._processes)

    @property
    def asks(self) -> bool:
        """Whether instances have an ``is_ready``, so that :meth:`check_ready` may take its time."""
        return bool(self._asking)

    def check_ready(self) -> bool:
        """What the instances' own ``is_ready`` return: all of them, within the time limit."""
        return self._readiness.ready()

    def create_instance(self, spec: InstanceSpec) -> BackendInstance:
        """Run the file again and initialise a model of its class. Raises ``InternalError`` if either raised, or their
        process ended."""
        arguments = {
            "model_config": self._json,
            "model_instance_kind": spec.kind,
            "model_instance_name": spec.name,
            "model_instance_device_id": str(spec.device_id),
            "model_repository": str(self._context.model_dir.parent),
            "model_version": self._context.model_version,
            "model_name": self._context.model_name,
        }
        if self._process_spec is not None:
            child = self._started.pop(spec.name, None) or new_child(self._process_spec, spec.name)
            process = ProcessInstance(self._process_spec, spec.name, arguments, child)
            self._processes.append(process)
            if process.supervisor.asks:
                self._asking[spec.name] = process.is_ready
            return process
        instance = started(self._path, self._context, arguments, decoupled=self._decoupled)
        if instance.asks:
            self._asking[spec.name] = instance.is_ready
        return instance

    def close(self) -> None:
        """End the processes that no instance was made of; nothing else is shared between instances."""
        for child in self._started.values():
            child.kill()
        for child in self._started.values():
            child.exited.wait()
        self._started.clear()

    def _start(self, process_spec: ProcessSpec, names: Sequence[str]) -> None:
        try:
            for name in names:
                self._started[name] = new_child(process_spec, name)
        except BaseException:
            self.close()
            raise


def _file_name(config: ModelConfig) -> str:
    return config.default_model_filename or PythonBackend.default_model_filename


def _apply(config: ModelConfig, completed: Mapping[str, Any]) -> None:
    name = config.name
    agents = type(config)()
    agents.model_repository_agents.CopyFrom(config.model_repository_agents)
    had_agents = config.HasField("model_repository_agents")
    config.CopyFrom(read_json(completed, source=f"auto_complete_config of '{name}'"))
    # What the model's own code may not change: its name, and the agents that have already run.
    config.name = name
    config.ClearField("model_repository_agents")
    if had_agents:
        config.model_repository_agents.CopyFrom(agents.model_repository_agents)
