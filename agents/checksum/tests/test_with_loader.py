"""The installed agent in a real loader: found by its entry point, run in a chain, and reported."""

import hashlib
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import fsspec
import pytest
from click import Command
from repoagent_checksum.checksum_options import PARAMETERS
from repoagent_checksum.cli import checksum
from repoagent_checksum.digest_file import ALGORITHMS, STANDARD_NAMES

from repoagent.errors import AgentRefusedError, RepoAgentError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.loader import Loader
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

WEIGHTS = b"weights"
MD5 = hashlib.md5(WEIGHTS).hexdigest()


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[Loader]:
    with ExitStack() as stack:
        workspace = stack.enter_context(WorkspaceRoot(tmp_path / "workspace"))
        loader = Loader(AgentRegistry(None), workspace)
        stack.callback(loader.close)
        yield loader


@pytest.fixture
def model(tmp_path: Path) -> Path:
    root = tmp_path / "repository" / "m"
    (root / "1").mkdir(parents=True)
    (root / "1" / "model.onnx").write_bytes(WEIGHTS)
    return root


def configure(model: Path, key: str, value: str) -> None:
    entry = f'{{ name: "checksum" parameters {{ key: "{key}" value: "{value}" }} }}'
    (model / "config.pbtxt").write_text(f"model_repository_agents {{ agents [ {entry} ] }}")


def test_a_right_digest_loads_a_snapshot_that_nobody_can_change_any_more(loader: Loader, model: Path) -> None:
    configure(model, "MD5:1/model.onnx", MD5)
    chain = loader.load(open_source("m", str(model)))
    assert chain.report.to_dict()["entries"][0]["actions"][0]["digests"] == {"1/model.onnx": f"md5:{MD5}"}
    (model / "1" / "model.onnx").write_bytes(b"changed after the check")
    assert chain.files.bytes("1/model.onnx") == WEIGHTS
    chain.complete()
    chain.unload()
    chain.unload_complete()


def test_a_wrong_digest_refuses_the_model_with_the_agents_text(loader: Loader, model: Path) -> None:
    configure(model, "MD5:1/model.onnx", "0" * 32)
    with pytest.raises(AgentRefusedError) as caught:
        loader.load(open_source("m", str(model)))
    text = f"Mismatched MD5 hash for file 1/model.onnx, expect: {'0' * 32}, got: {MD5}"
    assert str(caught.value) == f"agent 'checksum': {text}"


def test_a_tree_that_sha256sum_described_loads_until_a_file_is_added(loader: Loader, model: Path) -> None:
    configure(model, "manifest", "SHA256SUMS")
    command = "sha256sum 1/model.onnx config.pbtxt > SHA256SUMS"
    subprocess.run(["sh", "-c", command], cwd=model, check=True)
    chain = loader.load(open_source("m", str(model)))
    chain.complete()
    chain.unload()
    chain.unload_complete()
    (model / "1" / "extra").write_bytes(b"")
    with pytest.raises(AgentRefusedError, match="agent 'checksum': not listed: 1/extra"):
        loader.load(open_source("m", str(model)))


def test_a_link_in_the_model_is_refused(loader: Loader, model: Path, tmp_path: Path) -> None:
    configure(model, "MD5:1/model.onnx", MD5)
    (model / "1" / "model.onnx").rename(tmp_path / "elsewhere")
    (model / "1" / "model.onnx").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RepoAgentError, match=r"'1/model\.onnx' is a link"):
        loader.load(open_source("m", str(model)))


def test_a_remote_model_is_fetched_checked_and_loaded_from_what_was_fetched(loader: Loader, model: Path) -> None:
    configure(model, "MD5:1/model.onnx", MD5)
    remote = fsspec.filesystem("memory")
    remote.put(f"{model}/", "/checksum-test/m/", recursive=True)
    try:
        chain = loader.load(open_source("m", "memory://checksum-test/m"))
        remote.pipe_file("/checksum-test/m/1/model.onnx", b"changed after the check")
        assert chain.files.bytes("1/model.onnx") == WEIGHTS
        chain.fail(RuntimeError("enough"))
        with pytest.raises(AgentRefusedError, match="Mismatched MD5"):
            loader.load(open_source("m", "memory://checksum-test/m"))
    finally:
        remote.rm("/checksum-test", recursive=True)


# The README keeps up with the code.

README = (Path(__file__).parents[1] / "README.md").read_text()


@pytest.mark.parametrize("parameter", [*PARAMETERS, "DIGEST:path", *(f"{name}:path" for name in ALGORITHMS)])
def test_every_parameter_is_documented(parameter: str) -> None:
    assert f"`{parameter}`" in README


@pytest.mark.parametrize("name", STANDARD_NAMES)
def test_every_standard_digest_file_is_documented(name: str) -> None:
    assert f"`{name}`" in README


@pytest.mark.parametrize("command", checksum.commands.values(), ids=lambda command: str(command.name))
def test_every_option_of_the_command_line_is_documented(command: Command) -> None:
    assert f"repoagent checksum {command.name}" in README
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert f"`{parameter.opts[0]}`" in README
