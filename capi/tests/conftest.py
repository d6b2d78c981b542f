"""What the tests of the C part share: a compiler, compiled agents, and a loader over them."""

import os
import runpy
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from repoagent.loader.chain import LoadedChain
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.loader import Loader
from repoagent.storage.repositories.sources import ModelSource, open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

DATA = Path(__file__).parent / "data"
STRICT = ("-std=c99", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-pedantic", "-Werror", "-g")

CompileAgent = Callable[..., Path]


@pytest.fixture(scope="session")
def capi() -> Path:
    """The installed package; tests that need it are skipped, with the reason, where it is not."""
    package = pytest.importorskip(
        "repoagent_capi", reason="repoagent-capi is not installed; from a checkout: pip install ./capi"
    )
    return Path(package.__file__).parent


@pytest.fixture(scope="session")
def compiler() -> str:
    found = shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler (cc) on this machine")
    return found


def run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@dataclass
class NativeBench:
    """A loader whose agents are the libraries of one directory."""

    root: Path
    loader: Loader
    workspace: WorkspaceRoot
    registry: AgentRegistry

    @property
    def agents(self) -> Path:
        return self.root / "agents"

    @property
    def trace(self) -> Path:
        return self.root / "trace.txt"

    def events(self) -> list[str]:
        return self.trace.read_text().splitlines() if self.trace.exists() else []

    def answers(self) -> list[str]:
        return (self.root / "answers.txt").read_text().splitlines()

    def model(self, *agents: str, parameters: str = "") -> ModelSource:
        root = self.root / "repository" / "m"
        (root / "1").mkdir(parents=True, exist_ok=True)
        entries = ", ".join(f'{{ name: "{agent}" {parameters} }}' for agent in agents)
        (root / "config.pbtxt").write_text(f'name: "m"\nmodel_repository_agents {{ agents [ {entries} ] }}\n')
        (root / "1" / "model.txt").write_text("weights")
        return open_source("m", str(root))

    def load(self, *agents: str, parameters: str = "") -> LoadedChain:
        return self.loader.load(self.model(*agents, parameters=parameters))

    def left_over(self) -> list[str]:
        return sorted(str(path) for path in (self.root / "workspace").glob("*/*") if not path.name.startswith("."))


@dataclass
class Compiler:
    """Compiles the sources of the tests, each once."""

    cc: str
    include: Path
    root: Path
    made: dict[tuple[str, str], Path] = field(default_factory=dict)

    def agent(self, source: str, name: str, directory: Path, *flags: str) -> Path:
        """``source`` as the agent ``name`` in ``directory``."""
        key = (source, " ".join((name, *flags)))
        if key not in self.made:
            target = self.root / f"{len(self.made)}-{name}.so"
            define = f'-DNAME="{name}"'
            run(self.cc, *STRICT, "-shared", "-fPIC", define, f"-I{self.include}", DATA / source, "-o", target, *flags)
            self.made[key] = target
        library = directory / name / f"libtritonrepoagent_{name}.so"
        library.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.made[key], library)
        return library

    def program(self, source: str, target: Path, *flags: str) -> Path:
        """``source`` as a program."""
        run(self.cc, *STRICT, f"-I{self.include}", DATA / source, "-o", target, *flags)
        return target


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The sources of a table without Python, for programs that link the library."""
    tool = runpy.run_path(str(DATA.parents[1] / "tools" / "write_crossing.py"))
    header, core = ((DATA.parents[1] / "src" / name).read_text() for name in ("core.h", "core.c"))
    forwards = tmp_path_factory.mktemp("stub") / "forwards.c"
    body = tool["calls"](header, core, kind="")
    forwards.write_text(f'#include "core.h"\nextern crossed_function const* layer;\n{body}')
    return [str(DATA / "stub_core.c"), str(forwards)]


@pytest.fixture(scope="session")
def compile_c(capi: Path, compiler: str, tmp_path_factory: pytest.TempPathFactory) -> Compiler:
    return Compiler(compiler, capi / "include", tmp_path_factory.mktemp("compiled"))


@pytest.fixture
def native(tmp_path: Path, compile_c: Compiler, monkeypatch: pytest.MonkeyPatch) -> Iterator[NativeBench]:
    (tmp_path / "agents").mkdir()
    monkeypatch.setenv("TRACE", str(tmp_path / "trace.txt"))
    monkeypatch.setenv("ANSWERS", str(tmp_path / "answers.txt"))
    monkeypatch.setenv("MARK", "")
    monkeypatch.setenv("FAILS", "")
    with ExitStack() as stack:
        workspace = stack.enter_context(WorkspaceRoot(tmp_path / "workspace"))
        registry = AgentRegistry(tmp_path / "agents")
        loader = Loader(registry, workspace)
        stack.callback(loader.close)
        yield NativeBench(tmp_path, loader, workspace, registry)


def set_mark(mark: str) -> None:
    """What the recording agents write after calls of a model that begins now."""
    os.environ["MARK"] = mark
