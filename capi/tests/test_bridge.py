"""Agents of this project behind Triton's interface: here in our own server, which offers the same interface."""

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from repoagent.errors import AgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.loader import Loader
from repoagent.storage.repositories.sources import open_source

LoadModel = Callable[..., Any]


@pytest.fixture
def bridged(capi: Path, tmp_path: Path, native: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoadModel]:
    """Loads a model through bridged agents, each with its parameters."""
    command = pytest.importorskip("repoagent_capi.command")
    done = CliRunner().invoke(command.bridge, ["install", str(native.agents), "checksum", "decrypt"])
    assert done.exit_code == 0, done.output
    monkeypatch.setenv("REPOAGENT_WORKSPACE", str(tmp_path / "bridge-workspace"))
    monkeypatch.setenv("REPOAGENT_ALLOW_SWAP", "1")
    # Without the packages: their agents have the same names.
    loader = Loader(AgentRegistry(native.agents, group="repoagent.tests.nothing"), native.workspace)

    def load(model: Path, **agents: dict[str, str]) -> Any:
        entries = []
        for name, parameters in agents.items():
            given = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
            entries.append(f'{{ name: "{name}" {given} }}')
        (model / "config.pbtxt").write_text(f"model_repository_agents {{ agents [ {', '.join(entries)} ] }}\n")
        return loader.load(open_source(model.name, str(model)))

    yield load
    loader.close()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "repository" / "digits"
    (path / "1").mkdir(parents=True)
    (path / "1" / "model.txt").write_text("weights")
    return path


def left_over(root: Path) -> list[str]:
    return [str(path) for path in root.rglob("*") if path.is_file() and not path.name.startswith(".")]


def md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


@pytest.mark.slow
def test_the_library_exports_the_entry_points_of_an_agent_only(capi: Path) -> None:
    if shutil.which("nm") is None:
        pytest.skip("no nm on this machine")
    library = capi / "lib" / "librepoagent_bridge.so"
    listing = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True)
    assert sorted(line.split()[2].removeprefix("TRITONREPOAGENT_") for line in listing.stdout.splitlines()) == [
        "Finalize", "Initialize", "ModelAction", "ModelFinalize", "ModelInitialize",
    ]  # fmt: skip


@pytest.mark.slow
def test_an_agent_that_is_not_installed_cannot_be_laid_out(capi: Path, tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("repoagent")  # with the plug-ins of the environment
    command = [str(program), "bridge", "install", str(tmp_path / "agents"), "nosuch"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "agent 'nosuch': no such agent" in done.stderr
    assert not (tmp_path / "agents").exists()


def test_a_model_passes_a_bridged_guard_and_is_loaded_from_its_private_copy(
    bridged: LoadModel, model: Path, tmp_path: Path
) -> None:
    chain = bridged(model, checksum={"MD5:1/model.txt": md5(model / "1" / "model.txt")})
    assert Path(chain.location).is_relative_to(tmp_path / "bridge-workspace")
    chain.complete()
    chain.unload()
    assert left_over(tmp_path / "bridge-workspace") != []
    chain.unload_complete()
    assert left_over(tmp_path / "bridge-workspace") == []


def test_a_wrong_digest_is_refused_with_the_reason(bridged: LoadModel, model: Path, tmp_path: Path) -> None:
    with pytest.raises(AgentError, match=r"Mismatched MD5 hash for file 1/model\.txt, expect: 00, got: "):
        bridged(model, checksum={"MD5:1/model.txt": "00"})
    assert left_over(tmp_path / "bridge-workspace") == []


@pytest.fixture
def encrypted(model: Path, tmp_path: Path) -> tuple[Path, str]:
    """The model encrypted, and a reference to its key."""
    pyrage = pytest.importorskip("pyrage")
    identity = pyrage.x25519.Identity.generate()
    key = tmp_path / "key.txt"
    key.write_text(str(identity))
    path = model / "1" / "model.txt"
    (model / "1" / "model.txt.age").write_bytes(pyrage.encrypt(path.read_bytes(), [identity.to_public()]))
    path.unlink()
    return model, f"file:{key}"


def test_plaintext_stays_in_memory_from_one_bridged_entry_to_the_next(
    bridged: LoadModel, encrypted: tuple[Path, str], tmp_path: Path
) -> None:
    model, key = encrypted
    digest = hashlib.md5(b"weights", usedforsecurity=False).hexdigest()
    chain = bridged(model, decrypt={"identity": key}, checksum={"MD5:1/model.txt": digest})
    plaintext = Path(chain.location) / "1" / "model.txt"
    assert plaintext.read_text() == "weights"
    assert str(plaintext).startswith("/dev/shm/")
    assert not [path for path in left_over(tmp_path / "bridge-workspace") if path.endswith("model.txt")]
    chain.complete()
    chain.unload()
    chain.unload_complete()
    assert not plaintext.exists()


def test_a_wrong_key_is_refused_with_the_reason(
    bridged: LoadModel, encrypted: tuple[Path, str], tmp_path: Path
) -> None:
    model, _ = encrypted
    wrong = tmp_path / "wrong.txt"
    wrong.write_text(str(pytest.importorskip("pyrage").x25519.Identity.generate()))
    with pytest.raises(AgentError, match="no identity fits"):
        bridged(model, decrypt={"identity": f"file:{wrong}"})


def test_a_configuration_that_an_agent_rewrote_is_an_error_at_load_and_not_lost(
    bridged: LoadModel, model: Path, native: Any, capi: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of an agent of a directory, as none that is installed here rewrites this model."""
    agents = tmp_path / "python-agents" / "rewriter"
    agents.mkdir(parents=True)
    (agents / "agent.py").write_text(
        "from repoagent.api import Agent\n\n\nclass Rewriter(Agent):\n    api_version = 1\n\n"
        "    def load(self, model):\n        config = model.config\n        config.max_batch_size = 7\n"
        "        model.acquire_location()\n        model.write_config(config)\n"
        "        model.update_location(model.acquire_location())\n"
    )
    place = native.agents / "rewriter"
    shutil.copytree(native.agents / "checksum", place)
    (place / "libtritonrepoagent_checksum.so").rename(place / "libtritonrepoagent_rewriter.so")
    from repoagent_capi import bridge

    monkeypatch.setattr(bridge, "AgentRegistry", lambda _directory: AgentRegistry(agents.parent))
    with pytest.raises(AgentError, match="changed the configuration of model 'digits', which Triton read before"):
        bridged(model, rewriter={})
    assert left_over(tmp_path / "bridge-workspace") == []
