"""T13: ``record_sha256`` covers compiled files, files that no list has, and the helpers of an agent in a directory."""

import hashlib
import os
import py_compile
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from repoagent.config import read_text
from repoagent.errors import AgentError
from repoagent.loader.agent_code import code_of
from repoagent.loader.agent_directory import PINNED_CODE
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.policy import PolicyPlanner, read_policy

pytestmark = pytest.mark.slow

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "agents" / "sizelimit"
PACKAGE = "repoagent_sizelimit"
AGENT = """
from repoagent.api import Agent
from . import helper

class Mine(Agent):
    api_version = 1

    def load(self, model):
        helper.look(model)
"""


@pytest.fixture(autouse=True)
def nothing_stays() -> Iterator[None]:
    yield
    PINNED_CODE.clear()
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.startswith((PACKAGE, "_repoagent_directory_agent_"))]:
        del sys.modules[name]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, "--disable-pip-version-check", "--target", str(target), str(EXAMPLE)], check=True)
    return target


@pytest.fixture
def site(wheel: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example agent as pip installs it, compiled files included, on ``sys.path``."""
    target = tmp_path / "site"
    shutil.copytree(wheel, target)
    monkeypatch.syspath_prepend(str(target))
    return target


def plant(source: Path, evil: str) -> Path:
    """Put a compiled file beside ``source`` that Python takes for its own, and that does what ``evil`` says."""
    compiled = Path(py_compile.compile(str(source), doraise=True) or "")
    other = source.parent.parent / "evil.py"
    other.write_text(evil)
    code = Path(py_compile.compile(str(other), cfile=str(other.with_suffix(".pyc")), doraise=True) or "").read_bytes()
    compiled.write_bytes(compiled.read_bytes()[:16] + code[16:])
    other.unlink()
    return compiled


def planner(registry: AgentRegistry, tmp_path: Path, name: str, digest: str) -> PolicyPlanner:
    path = tmp_path / "policy.toml"
    path.write_text(f'[[rule]]\nmodels = ["*"]\nagents = [{{ name = "{name}", record_sha256 = "{digest}" }}]\n')
    return PolicyPlanner(read_policy(path), registry)


def ask_for(agent: str, registry: AgentRegistry, planner: PolicyPlanner) -> None:
    """What a load does: plan, then import."""
    planner.plan("m", read_text(f'model_repository_agents {{ agents [ {{ name: "{agent}" }} ] }}'))
    registry.load(agent)


class TestOfPackages:
    """An agent that pip installed."""

    def load(self, tmp_path: Path, site: Path) -> None:
        (record,) = site.glob("*.dist-info/RECORD")
        registry = AgentRegistry(None)
        policy = planner(registry, tmp_path, "sizelimit", hashlib.sha256(record.read_bytes()).hexdigest())
        ask_for("sizelimit", registry, policy)

    def test_the_honest_package_is_used(self, tmp_path: Path, site: Path) -> None:
        self.load(tmp_path, site)
        assert type(sys.modules[PACKAGE].__loader__).__name__ == "_VerifiedLoader"

    def test_a_compiled_file_is_not_run(self, tmp_path: Path, site: Path, trap: Path) -> None:
        plant(site / PACKAGE / "__init__.py", f"open({str(trap)!r}, 'w').close()")
        self.load(tmp_path, site)
        assert not trap.exists()

    def test_the_attack_works_without_a_pin(self, site: Path, trap: Path) -> None:
        plant(site / PACKAGE / "__init__.py", f"open({str(trap)!r}, 'w').close()")
        with pytest.raises(AgentError):
            AgentRegistry(None).load("sizelimit")
        assert trap.exists()

    def test_what_a_plug_in_has_imported_before_is_imported_again(self, tmp_path: Path, site: Path, trap: Path) -> None:
        plant(site / PACKAGE / "__init__.py", f"open({str(trap)!r}, 'w').close()")
        __import__(PACKAGE)
        assert trap.exists()
        self.load(tmp_path, site)
        assert hasattr(sys.modules[PACKAGE], "SizeLimitAgent")

    def test_a_module_that_the_list_does_not_have_is_not_imported(self, tmp_path: Path, site: Path) -> None:
        self.load(tmp_path, site)
        (site / PACKAGE / "extra.py").write_text("raise SystemExit")
        py_compile.compile(str(site / PACKAGE / "extra.py"), cfile=str(site / PACKAGE / "compiled.pyc"), doraise=True)
        for name in ("extra", "compiled"):
            with pytest.raises(ImportError, match="is not part of the pinned code"):
                __import__(f"{PACKAGE}.{name}")

    def test_source_that_changes_between_check_and_import_is_not_run(self, tmp_path: Path, site: Path) -> None:
        (record,) = site.glob("*.dist-info/RECORD")
        registry = AgentRegistry(None)
        planner(registry, tmp_path, "sizelimit", hashlib.sha256(record.read_bytes()).hexdigest())
        with (site / PACKAGE / "__init__.py").open("a") as file:
            file.write("# changed\n")
        with pytest.raises(AgentError, match="was changed after it was verified"):
            registry.load("sizelimit")

    def test_a_row_without_a_digest_is_refused(self, tmp_path: Path, site: Path) -> None:
        (record,) = site.glob("*.dist-info/RECORD")
        lines = record.read_text().splitlines()
        stripped = [line.split(",")[0] + ",," if line.startswith(f"{PACKAGE}/__init__.py") else line for line in lines]
        record.write_text("\n".join(stripped) + "\n")
        with pytest.raises(AgentError, match=f"its RECORD has no digest of {PACKAGE}/__init__.py"):
            self.load(tmp_path, site)


class TestOfDirectories:
    """An agent of ``--repoagent-directory`` with a module beside it."""

    @pytest.fixture
    def directory(self, tmp_path: Path) -> Path:
        path = tmp_path / "agents" / "mine"
        path.mkdir(parents=True)
        (path / "agent.py").write_text(AGENT)
        (path / "helper.py").write_text("def look(model): pass\n")
        return path

    def load(self, tmp_path: Path, directory: Path, digest: str) -> None:
        registry = AgentRegistry(directory.parent)
        ask_for("mine", registry, planner(registry, tmp_path, "mine", digest))

    def digest(self, directory: Path) -> str:
        return code_of(AgentRegistry(directory.parent).find("mine")).digest

    def test_the_honest_agent_is_used(self, tmp_path: Path, directory: Path) -> None:
        self.load(tmp_path, directory, self.digest(directory))

    def test_a_changed_helper_is_refused(self, tmp_path: Path, directory: Path, trap: Path) -> None:
        digest = self.digest(directory)
        (directory / "helper.py").write_text(f"open({str(trap)!r}, 'w').close()\n")
        with pytest.raises(AgentError, match="its code has the digest"):
            self.load(tmp_path, directory, digest)
        assert not trap.exists()

    @pytest.mark.parametrize("name", ["agent.py", "helper.py"])
    def test_a_compiled_file_is_not_run(self, tmp_path: Path, directory: Path, trap: Path, name: str) -> None:
        digest = self.digest(directory)
        plant(directory / name, f"open({str(trap)!r}, 'w').close()\nfrom repoagent.api import Agent as agent")
        self.load(tmp_path, directory, digest)
        assert not trap.exists()

    @pytest.mark.parametrize("name", ["other.py", "other.pyc", "data/words.txt", "helper/__init__.py"])
    def test_an_added_file_is_refused(self, tmp_path: Path, directory: Path, name: str) -> None:
        digest = self.digest(directory)
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_bytes(b"")
        with pytest.raises(AgentError, match="its code has the digest"):
            self.load(tmp_path, directory, digest)

    def test_two_agents_never_share_a_module(self, tmp_path: Path, directory: Path) -> None:
        for name in ("a-b", "a_b", "a.b"):
            shutil.copytree(directory, directory.parent / name)
            (directory.parent / name / "helper.py").write_text(f"NAME = {name!r}\ndef look(model): pass\n")
        registry = AgentRegistry(directory.parent)
        loaded = {name: registry.load(name) for name in ("a-b", "a_b", "a.b")}
        helpers = {name: sys.modules[f"{agent.__module__}.helper"].NAME for name, agent in loaded.items()}
        assert helpers == {name: name for name in loaded}
        assert os.sep not in "".join(agent.__module__ for agent in loaded.values())
