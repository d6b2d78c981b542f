"""The agent in the real loader: where plaintext is while the model lives, and that none is left when it does not."""

import ast
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import click
import pytest
from repoagent_decrypt import register_commands, register_key_providers
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import CHUNK
from repoagent_decrypt.agent import PARAMETERS

from repoagent.errors import AgentError, UnavailableError
from repoagent.loader.chain import LoadedChain
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.loader import Loader
from repoagent.loader.plugins import PluginManager
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

MARKER = b"PLAINTEXT-MARKER-5f1c"
WEIGHTS = MARKER + os.urandom(2 * CHUNK) + MARKER


@dataclass
class Server:
    """A loader with a workspace on disk and one in memory."""

    loader: Loader
    disk: Path
    memory: Path

    def load(self, root: Path) -> LoadedChain:
        return self.loader.load(open_source("digits", str(root)))

    def plaintext(self) -> list[Path]:
        """Files with the marker in them, anywhere the loader may write."""
        files = [path for place in (self.disk, self.memory) for path in place.rglob("*") if path.is_file()]
        return [path for path in files if MARKER in path.read_bytes()]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    with ExitStack() as stack:
        memory = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        disk = tmp_path / "workspace"
        workspace = stack.enter_context(WorkspaceRoot(disk, confidential_dir=memory, allow_swap=True))
        loader = Loader(AgentRegistry(None), workspace)
        stack.callback(loader.close)
        yield Server(loader, disk, memory)


@pytest.fixture
def model_dir(
    make_tree: Callable[..., Path], encrypt_in_place: Callable[..., None], identity: X25519Identity, key_file: Path
) -> Path:
    config = (
        'name: "digits"\nmodel_repository_agents { agents [ { name: "decrypt" '
        f'parameters {{ key: "identity" value: "file:{key_file}" }} }} ] }}\n'
    )
    root = make_tree({"config.pbtxt": config.encode(), "1/a.bin": WEIGHTS, "1/z.bin": WEIGHTS})
    for name in ("1/a.bin", "1/z.bin"):
        encrypt_in_place(root / name, identity.recipient)
    return root


def test_plaintext_is_in_memory_only_and_only_while_the_model_lives(server: Server, model_dir: Path) -> None:
    chain = server.load(model_dir)
    assert chain.files.bytes("1/a.bin") == WEIGHTS
    assert sorted(path.name for path in server.plaintext()) == ["a.bin", "z.bin"]
    assert all(path.is_relative_to(server.memory) for path in server.plaintext())
    chain.complete()
    chain.unload()
    chain.unload_complete()
    assert server.plaintext() == []


def test_the_report_says_what_was_done_and_holds_no_secret(
    server: Server, model_dir: Path, identity: X25519Identity
) -> None:
    chain = server.load(model_dir)
    text = "\n".join(chain.report.lines())
    assert "2 decrypted, 1 copied" in text
    assert identity.export() not in text
    assert identity.export() not in str(chain.report.to_dict())
    chain.fail(RuntimeError("the backend refused"))
    assert server.plaintext() == []


def test_what_was_decrypted_before_the_damage_is_removed(server: Server, model_dir: Path) -> None:
    damaged = model_dir / "1/z.bin.age"
    os.truncate(damaged, damaged.stat().st_size - 1)
    with pytest.raises(AgentError, match=r"agent 'decrypt': 1/z\.bin\.age: the payload"):
        server.load(model_dir)
    assert server.plaintext() == []


def test_a_model_that_does_not_fit_in_memory_is_refused_before_it_is_decrypted(model_dir: Path, tmp_path: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as memory,
        WorkspaceRoot(tmp_path / "w", confidential_dir=Path(memory), allow_swap=True, free=lambda _: 100_000) as root,
    ):
        loader = Loader(AgentRegistry(None), root)
        with pytest.raises(AgentError) as error:
            loader.load(open_source("digits", str(model_dir)))
        assert isinstance(error.value.__cause__, UnavailableError)
        loader.close()


def test_a_remote_model_is_fetched_encrypted_and_decrypted_here(server: Server, model_dir: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    remote = fsspec.filesystem("memory")
    remote.put(str(model_dir), "/decrypt-test/digits", recursive=True)
    try:
        chain = server.loader.load(open_source("digits", "memory://decrypt-test/digits"))
        assert chain.files.bytes("1/z.bin") == WEIGHTS
        assert all(path.is_relative_to(server.memory) for path in server.plaintext())
        chain.fail(RuntimeError("enough"))
        assert server.plaintext() == []
    finally:
        remote.rm("/decrypt-test", recursive=True)


def test_the_key_schemes_and_commands_of_the_package_are_registered() -> None:
    with PluginManager() as plugins:
        assert set(register_key_providers()) <= set(plugins.registry("key_providers"))
        assert {"encrypt", "decrypt", "rekey", "keygen"} <= set(plugins.registry("commands"))


# What the plug-in module registers can be imported; the module itself imports nothing heavy.


@pytest.mark.parametrize("target", register_key_providers().values())
def test_every_key_provider_is_there(target: str) -> None:
    module, _, attribute = target.partition(":")
    assert callable(getattr(import_module(module), attribute))


@pytest.mark.parametrize("name", list(register_commands()))
def test_every_command_is_there_under_its_name(name: str) -> None:
    module, _, attribute = register_commands()[name].target.partition(":")
    command = getattr(import_module(module), attribute)
    assert isinstance(command, click.Command)
    assert command.name == name


@pytest.mark.slow
def test_importing_the_plug_in_loads_no_cryptography_and_no_click() -> None:
    code = "import sys, repoagent_decrypt; print({'cryptography', 'click', 'botocore'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


# Who may import whom: the package only ``repoagent.api``, a format its reader of JSON alone and no other format.

PACKAGE = Path(__file__).parent.parent / "repoagent_decrypt"
FORMATS = {"age", "jwe", "tink"}
FILES = sorted(str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield f"{node.module}.{node.names[0].name}" if node.module == "repoagent.api" else node.module or ""


@pytest.mark.parametrize("name", FILES)
def test_only_the_agents_interface_of_the_project_is_imported(name: str) -> None:
    folder = name.partition("/")[0]
    for module in imported(PACKAGE / name):
        if module.split(".")[0] == "repoagent":
            assert module.startswith("repoagent.api")
            assert folder not in FORMATS or module.startswith("repoagent.api.read_json")
        if folder in FORMATS and module.startswith("repoagent_decrypt"):
            assert module.split(".")[1] in {folder, "files"}
        if folder == "files" and module.startswith("repoagent_decrypt"):
            assert module.split(".")[1] == "files"


# The README names everything there is, and its examples work.

README = (Path(__file__).parent.parent / "README.md").read_text()


def section(title: str) -> str:
    return README.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_parameter_is_in_the_table(name: str) -> None:
    assert f"\n| `{name}` |" in section("Parameters")


@pytest.mark.parametrize("scheme", ["env", "file", "exec", *register_key_providers()])
def test_every_key_scheme_is_in_the_table(scheme: str) -> None:
    assert f"\n| `{scheme}:" in section("Where keys are")


def test_every_variable_that_is_read_is_named() -> None:
    source = "".join(path.read_text() for path in (PACKAGE / "providers").glob("*.py"))
    variables = set(re.findall(r'"((?:REPOAGENT|VAULT)_[A-Z_]+)"', source)) - {"REPOAGENT_STARTED_BY"}  # only passed on
    assert variables >= {"REPOAGENT_KBS_URL", "VAULT_ADDR", "VAULT_TOKEN"}
    assert [name for name in variables if name not in section("Where keys are")] == []


@pytest.mark.parametrize("name", list(register_commands()))
def test_every_option_of_every_command_is_named(name: str) -> None:
    module, _, attribute = register_commands()[name].target.partition(":")
    command = getattr(import_module(module), attribute)
    text = section("Command line") + section("From key to served model")
    assert f"`repoagent {name}" in text
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert any(re.search(rf"(?<![\w-]){option}(?![\w-])", text) for option in parameter.opts), parameter.opts


def test_the_example_of_the_library_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(b"weights")
    code = re.findall(r"```python\n(.*?)```", section("The age library"), re.DOTALL)[0]
    exec(code, {})
    assert (tmp_path / "again.onnx").read_bytes() == b"weights"


def test_the_vectors_directory_says_where_they_come_from(read_tree: Callable[[Path], dict[str, bytes]]) -> None:
    vectors = read_tree(Path(__file__).parent / "vectors")
    assert b"cctv-age` 0.2.0" in vectors["ORIGIN.md"]
    assert b"Zero-Clause BSD" in vectors["LICENSE"]
