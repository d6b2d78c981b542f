"""Running agents on models through the real loader, in private places that are looked through afterwards."""

import io
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from repoagent.api import Action, LoadReport
from repoagent.config import ModelConfig, write_text
from repoagent.converters import BUILT_IN_CONVERTERS
from repoagent.errors import NotFoundError, RepoAgentError
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.loader.candidates import LoadedAgent
from repoagent.loader.chain import LoadedChain
from repoagent.loader.converting.environments import ConverterSettings
from repoagent.loader.converting.registry import Converters
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.load_context import Services
from repoagent.loader.loader import Loader
from repoagent.loader.plugins import PluginManager, key_providers
from repoagent.storage.cache.cache import Cache
from repoagent.storage.files.files import ModelFiles
from repoagent.storage.repositories.sources import ModelSource, open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot
from repoagent.testing.faults import FaultInjection, TestedAgents, storage_points
from repoagent.testing.leftovers import workspace_leftovers

SCHEME: Final = "fake"


class FakeKeys:
    """A key provider: ``fake:NAME`` is the secret that the test put there; ``asked`` lists the references in order."""

    def __init__(self, secrets: Mapping[str, bytes] | None = None) -> None:
        self._secrets = dict(secrets or {})
        self.asked: list[str] = []

    def put(self, name: str, secret: bytes) -> str:
        """Keep ``secret`` and return the reference to it."""
        self._secrets[name] = secret
        return f"{SCHEME}:{name}"

    def __call__(self, uri: str) -> bytes:
        """What the loader calls.

        Raises:
            NotFoundError: the test put nothing there.
        """
        self.asked.append(uri)
        name = uri.partition(":")[2]
        if name not in self._secrets:
            raise NotFoundError(f"the test has no key at {SCHEME}:{name}")
        return self._secrets[name]


_SHARED_MEMORY: Final = Path("/dev/shm")  # noqa: S108 - the harness makes a private directory in it


@dataclass(frozen=True, slots=True)
class Outcome:
    """The outcome of one :meth:`AgentHarness.run`.

    ``files`` and ``config`` (its text, "" if there is none) are what a backend would have got. They are empty if the
    load was refused.

    ``left`` is what lay in the workspaces at the end. ``log`` has everything that was logged, at all levels.
    ``passed`` has the points that were passed (see :mod:`repoagent.testing.faults`).
    """

    report: LoadReport
    error: RepoAgentError | None
    files: Mapping[str, bytes] = field(default_factory=dict)
    config: str = ""
    left: tuple[Path, ...] = ()
    log: str = ""
    passed: tuple[str, ...] = ()

    @property
    def loaded(self) -> bool:
        """Whether the agents accepted the model."""
        return self.error is None

    def calls(self, agent: str) -> list[str]:
        """The calls of ``agent`` in order: ``initialize``, ``model_initialize``, ``LOAD``, ..."""
        steps = [point.removeprefix(f"{agent} ") for point in self.passed if point.startswith(f"{agent} ")]
        names = [step.partition(" #")[0] for step in steps]
        return [name for name in names if name in _CALLS]


_CALLS: Final = ("initialize", "model_initialize", *Action.__members__, "model_finalize", "finalize")


class AgentHarness:
    """A private loader with its own workspace, cache and keys. A context manager.

    The agents are those given by name, then the installed ones, then those in ``repoagent_directory``. Plug-ins of
    installed packages are in use too (for their key schemes). Thread-safe as the loader is; :meth:`run` is not.
    """

    def __init__(
        self,
        directory: Path,
        agents: Mapping[str, LoadedAgent] | None = None,
        *,
        keys: FakeKeys | None = None,
        faults: FaultInjection | None = None,
        repoagent_directory: Path | None = None,
        memory: Path | None = None,
        on_unload_request: Callable[[str, str], None] | None = None,
        converters: Mapping[tuple[str, str], str] | None = None,
        converter_settings: ConverterSettings | None = None,
        limits: Limits = DEFAULT_LIMITS,
    ) -> None:
        """Make the places; nothing is loaded.

        Args:
            directory: Where workspace and cache are made.
            agents: Name -> class (or object) under test.
            keys: What ``fake:NAME`` refers to.
            faults: What is to go wrong.
            repoagent_directory: As the flag ``--repoagent-directory``.
            memory: An existing directory on a memory filesystem, for confidential workspaces. By default a new one in
                /dev/shm, which is removed at the end.
            on_unload_request: Called when an agent asks for its model to be unloaded; see ``Loader``.
            converters: ``(from, to)`` -> ``"module:attribute"`` of converters beside the installed ones.
            converter_settings: The environments of converters, and whether sources may be code.
            limits: What one load may take.
        """
        self.keys = keys if keys is not None else FakeKeys()
        self.faults = faults if faults is not None else FaultInjection()
        self.workspace = directory / "workspace"
        self.cache = directory / "cache"
        self._agents = TestedAgents(agents or {}, AgentRegistry(repoagent_directory), self.faults)
        with ExitStack() as stack:
            stack.enter_context(storage_points(self.faults))
            self.memory = stack.enter_context(memory_directory(directory)) if memory is None else memory
            root = stack.enter_context(
                WorkspaceRoot(
                    self.workspace, confidential_dir=self.memory, allow_swap=True, free=self.faults.free_bytes
                )
            )
            cache = stack.enter_context(Cache(self.cache))
            plugins = stack.enter_context(PluginManager())
            services = Services(
                cache=cache,
                key_providers={**key_providers(plugins), SCHEME: self.keys},
                converters=Converters(plugins.registry("converters", {**BUILT_IN_CONVERTERS, **(converters or {})})),
                converter_settings=converter_settings or ConverterSettings(),
                limits=limits,
                notify=plugins.notify,
                on_unload_request=on_unload_request,
            )
            self.loader = Loader(self._agents, root, services)
            stack.callback(self.loader.close)
            self._stack = stack.pop_all()

    def __enter__(self) -> "AgentHarness":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Unload what is loaded and remove everything but the cache."""
        self._stack.close()

    def add(self, name: str, agent: LoadedAgent) -> None:
        """Put ``agent`` under test as ``name``."""
        self._agents.add(name, agent)

    def load(self, model: Path | ModelSource, *, override: ModelConfig | None = None) -> LoadedChain:
        """Run the agents that ``model`` names up to LOAD; the rest is the caller's, as for a server.

        Raises:
            RepoAgentError: the load was refused, or cancelled by a fault.
        """
        source = model if isinstance(model, ModelSource) else open_source(model.name, str(model))
        return self.loader.load(source, override=override, cancelled=self.faults.cancelled)

    def run(self, model: Path | ModelSource, *, override: ModelConfig | None = None) -> Outcome:
        """Take ``model`` through its whole life: load, complete, unload, unload_complete. A refusal does not raise."""
        before = len(self.faults.passed)
        with captured_log() as log:
            report, error, files, config = self._live(model, override)
        passed = tuple(self.faults.passed[before:])
        return Outcome(report, error, files, config, tuple(self.left_over()), log.getvalue(), passed)

    def left_over(self) -> list[Path]:
        """What lies in the workspaces now, on disk and in memory; empty when no model is loaded."""
        return workspace_leftovers(self.workspace, self.memory)

    def _live(
        self, model: Path | ModelSource, override: ModelConfig | None
    ) -> tuple[LoadReport, RepoAgentError | None, dict[str, bytes], str]:
        try:
            chain = self.load(model, override=override)
        except RepoAgentError as error:
            return error.report, error, {}, ""
        try:
            files = dict(_read_all(chain.files))
        except RepoAgentError as error:  # a backend would read here, and its failure fails the load
            chain.fail(error)
            return chain.report, error, {}, ""
        chain.complete()
        chain.unload()
        chain.unload_complete()
        return chain.report, None, files, write_text(chain.config) if chain.config is not None else ""


@contextmanager
def memory_directory(directory: Path) -> Iterator[Path]:
    """A private directory in memory, where the machine has one; else one that the loader will refuse to use."""
    place = _SHARED_MEMORY if os.access(_SHARED_MEMORY, os.W_OK) else directory
    path = Path(tempfile.mkdtemp(prefix="repoagent-test-", dir=place))
    try:
        yield path
    finally:
        shutil.rmtree(path)


def _read_all(files: ModelFiles, directory: str = "") -> Iterator[tuple[str, bytes]]:
    for name in files.names(directory):
        path = f"{directory}/{name}" if directory else name
        if files.names(path):
            yield from _read_all(files, path)
        elif not files.local_path(path).is_dir():
            yield path, files.bytes(path)


@contextmanager
def captured_log() -> Iterator[io.StringIO]:
    """For a block, every log record of every level goes into the stream too, tracebacks included."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(logging.Formatter("%(name)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    try:
        yield stream
    finally:
        root.setLevel(level)
        root.removeHandler(handler)
