"""The agent in the real loader: where plaintext is while the model lives, and that none is left when it does not."""

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from repoagent_decrypt import register_key_providers
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import CHUNK

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
