"""What the tests of the loader share: recording agents, a loader over them, and packages for one test."""

import importlib
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from repoagent.api import Action, Agent, AgentModel
from repoagent.config import ModelConfig
from repoagent.errors import AgentNotFoundError
from repoagent.loader.chain import LoadedChain
from repoagent.loader.load_context import Services
from repoagent.loader.loader import Loader
from repoagent.loader.plan import ChainPlanner
from repoagent.loader.plugins import PluginManager
from repoagent.storage.cache.cache import Cache
from repoagent.storage.repositories.sources import ModelSource, open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot
from tests.loader.converting.conftest import converting, marks

__all__ = ["converting", "marks"]

InstallPackage = Callable[..., Path]
Behaviour = Callable[[AgentModel, Action], None]


@dataclass
class Agents:
    """Makes agents that write down every call, and do or raise what the test says.

    Events read "NAME CALL", with the mark of the load (none, a prime, ...) after calls that belong to one.
    """

    events: list[str] = field(default_factory=list)
    fails: dict[str, BaseException] = field(default_factory=dict)
    does: dict[str, Behaviour] = field(default_factory=dict)
    guards: set[str] = field(default_factory=set)
    unknown: set[str] = field(default_factory=set)
    mark: str = ""
    threads: set[int] = field(default_factory=set)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def load(self, name: str) -> type[Agent]:
        """The registry's part."""
        if name in self.unknown or name == "missing":
            raise AgentNotFoundError(name, "no such agent")
        return self._make(name)

    def raise_at(self, *events: str) -> None:
        for event in events:
            self.fails[event] = ValueError(f"{event} fails")

    def record(self, event: str, mark: str = "") -> None:
        with self.lock:
            self.events.append(event + mark)
            self.threads.add(threading.get_ident())
        error = self.fails.get(event + mark)
        if error is not None:
            raise error

    def _make(self, name: str) -> type[Agent]:
        agents = self

        class Recording(Agent):
            api_version = 1
            guard = name in agents.guards

            def initialize(self) -> None:
                agents.record(f"{name} Init")

            def finalize(self) -> None:
                agents.record(f"{name} Fini")

            def model_initialize(self, model: AgentModel) -> None:
                model.state = agents.mark
                agents.record(f"{name} MInit", model.state)

            def model_finalize(self, model: AgentModel) -> None:
                agents.record(f"{name} MFini", model.state)

            def model_action(self, model: AgentModel, action: Action) -> None:
                agents.record(f"{name} {action.name}", model.state)
                if name in agents.does:
                    agents.does[name](model, action)

        return Recording


@dataclass
class Bench:
    """A loader over recording agents, with everything it needs in one directory."""

    directory: Path
    agents: Agents
    plugins: PluginManager
    workspace: WorkspaceRoot
    cache: Cache
    loader: Loader
    memory: Path

    def config(self, *agents: str, name: str = "m", extra: str = "") -> str:
        """The text of a configuration that names these agents."""
        entries = ", ".join(f'{{ name: "{agent}" parameters {{ key: "k" value: "v" }} }}' for agent in agents)
        return f'name: "{name}"\n{extra}\nmodel_repository_agents {{ agents [ {entries} ] }}\n'

    def model(
        self, *agents: str, name: str = "m", extra: str = "", files: Mapping[str, str] | None = None
    ) -> ModelSource:
        """A model in the repository, anew each time."""
        root = self.directory / "repository" / name
        (root / "1").mkdir(parents=True, exist_ok=True)
        (root / "config.pbtxt").write_text(self.config(*agents, name=name, extra=extra))
        for path, content in (files or {"1/model.txt": "weights"}).items():
            (root / path).write_text(content)
        return open_source(name, str(root))

    def load(self, *agents: str, name: str = "m", override: ModelConfig | None = None) -> LoadedChain:
        return self.loader.load(self.model(*agents, name=name), override=override)

    def left_over(self) -> list[str]:
        """What lies in the workspaces now, on disk and in memory."""
        found = [*(self.directory / "workspace").glob("*/*"), *self.memory.glob("*/*/*")]
        return sorted(str(path) for path in found if not path.name.startswith("."))


MakeBench = Callable[..., Bench]


@pytest.fixture
def agents() -> Agents:
    return Agents()


@pytest.fixture
def make_bench(tmp_path: Path, agents: Agents) -> Iterator[MakeBench]:
    """Benches with arguments for the loader; all closed at the end."""
    with ExitStack() as stack:

        def make(directory: Path = tmp_path, planner: ChainPlanner | None = None, **options: object) -> Bench:
            memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
            workspace = stack.enter_context(
                WorkspaceRoot(directory / "workspace", confidential_dir=memory, allow_swap=True)
            )
            cache = stack.enter_context(Cache(directory / "cache"))
            plugins = stack.enter_context(PluginManager(group=None))
            services = Services(cache=cache, notify=plugins.notify, **options)  # type: ignore[arg-type]
            loader = Loader(agents, workspace, services, planner=planner)
            stack.callback(loader.close)
            return Bench(directory, agents, plugins, workspace, cache, loader, memory)

        yield make


@pytest.fixture
def bench(make_bench: MakeBench) -> Bench:
    return make_bench()


@pytest.fixture
def install_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[InstallPackage]:
    """Put a package with entry points on ``sys.path`` for one test, as an installer would."""
    before = set(sys.modules)

    def install(
        distribution: str,
        entry_points: Mapping[str, Mapping[str, str]],
        modules: Mapping[str, str],
        version: str = "1.2.3",
    ) -> Path:
        site = tmp_path / f"site-{distribution}"
        info = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\nSummary: Made for a test\n"
        )
        sections = [
            f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in points.items())
            for group, points in entry_points.items()
        ]
        (info / "entry_points.txt").write_text("\n".join(sections))
        for name, source in modules.items():
            (site / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(str(site))
        importlib.invalidate_caches()
        return site

    yield install
    for name in set(sys.modules) - before:
        del sys.modules[name]
