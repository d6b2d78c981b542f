"""A thousand directories in one another: a walk that is recursive, or holds each open, ends more than this one load."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_checksum.cli import checksum
from repoagent_verify.cli import verify_command

from agents.verify.tests.issuing import public_pem
from repoagent.beneath import DEEPEST, list_beneath
from repoagent.errors import RepoAgentError, UnsafePathError
from repoagent.serving.core import ControlMode, ServingCore
from repoagent.storage.transfer.snapshot import snapshot
from tests.hostile.conftest import NewCore

pytestmark = pytest.mark.slow

DEEP = 1500


def bury(place: Path) -> None:
    """A file below ``DEEP`` directories in ``place``."""
    fd = os.open(place, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=fd))
    os.close(fd)


@pytest.fixture
def model(repository: Path) -> Iterator[Path]:
    model = repository / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / "model.py").write_text("class TritonPythonModel:\n    def execute(self, requests): return []\n")
    bury(model)
    yield model
    # rmtree is recursive as well: cut the chain into pieces.
    for number in range(DEEP // 200):
        piece = model / "/".join(["d"] * (DEEP - (number + 1) * 200))
        piece.rename(model.parent / f"piece-{number}")
        shutil.rmtree(model.parent / f"piece-{number}")


CONFIG = 'backend: "python" model_repository_agents {{ agents [ {{ name: "{agent}" {parameters} }} ] }}'


@pytest.mark.parametrize(
    ("agent", "parameters"),
    [
        ("verify", 'parameters { key: "public_key" value: "file:/x" }'),
        ("checksum", 'parameters { key: "manifest" value: "SHA256SUMS" }'),
        ("scan", ""),
        ("decrypt", 'parameters { key: "identity" value: "env:NONE" }'),
        ("fetch", 'parameters { key: "url" value: "https://vendor.example/m/" }'),
        ("license", 'parameters { key: "license" value: "l" } parameters { key: "public_key" value: "file:/x" }'),
        ("", ""),
    ],
)
def test_the_model_is_refused_in_one_line_and_the_others_load(
    new_core: NewCore, repository: Path, model: Path, agent: str, parameters: str
) -> None:
    good = repository / "good"
    shutil.copytree(model / "1", good / "1")
    (good / "config.pbtxt").write_text('backend: "python"')
    config = CONFIG.format(agent=agent, parameters=parameters) if agent else 'backend: "python"'
    (model / "config.pbtxt").write_text(config)
    core = new_core()
    files = len(os.listdir("/proc/self/fd"))
    if agent:
        with pytest.raises(RepoAgentError) as refused:
            core.load("m")
        assert "RecursionError" not in str(refused.value)
        assert "Too many open files" not in str(refused.value)
        assert "\n" not in str(refused.value).strip("\n;")
    assert len(os.listdir("/proc/self/fd")) <= files + 8
    core.load("good")


def ready(core: ServingCore) -> set[str]:
    return {entry["name"] for entry in core.index(ready_only=True)}


def test_a_repository_with_such_a_model_can_be_polled(new_core: NewCore, repository: Path, model: Path) -> None:
    good = repository / "good"
    shutil.copytree(model / "1", good / "1")
    for place in (good, model):
        (place / "config.pbtxt").write_text('backend: "python"')
    core = new_core(control_mode=ControlMode.POLL)
    assert ready(core) >= {"good"}
    shutil.rmtree(good)
    core.poll()
    assert "good" not in ready(core)


def test_a_snapshot_ends_at_the_limit(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsafePathError, match=f"more than {DEEPEST} directories in one another"):
        snapshot(model, tmp_path / "copy")


def test_links_do_not_lead_deeper_than_names_may(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "/".join(["d"] * 100)).mkdir(parents=True)
    (root / "/".join(["d"] * 100) / "e" / "/".join(["d"] * 50)).mkdir(parents=True)
    (root / "on").symlink_to("d/" * 100 + "e")
    assert list_beneath(root, "on") == ["d"]
    with pytest.raises(UnsafePathError, match="directories in one another"):
        list_beneath(root, "on/" + "/".join(["d"] * 40))


def commands(model: Path, tmp_path: Path) -> list[Callable[[], object]]:
    (tmp_path / "key.pem").write_bytes(public_pem(ec.generate_private_key(ec.SECP256R1())))
    (model / "model.sig").write_text("{}")
    return [
        lambda: CliRunner().invoke(verify_command, [str(model), "--public-key", str(tmp_path / "key.pem")]),
        lambda: CliRunner().invoke(checksum, ["write", str(model)]),
    ]


def test_the_commands_end_with_a_message(model: Path, tmp_path: Path) -> None:
    for command in commands(model, tmp_path):
        result = command()
        assert result.exit_code in (1, 2), result  # type: ignore[attr-defined]
