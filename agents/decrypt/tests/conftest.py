"""What the tests of this package share: models, keys, encrypted bytes, commands to run, a server to ask."""

import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, cast

import pytest
from click.testing import CliRunner, Result
from repoagent_decrypt import register_commands
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas import Recipient
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import CHUNK
from repoagent_decrypt.age.writer import encrypt_stream
from repoagent_decrypt.files.positional import Workers

from repoagent.api import AgentModel, ArtifactType, NotFoundError, Parameters
from repoagent.limits import DEFAULT_LIMITS, Limits
from repoagent.testing import write_files
from tests.file_server import FileServer, Request


@dataclass
class FakeModel:
    """The part of ``AgentModel`` that the agent uses; keeps what it is told."""

    directory: Path
    target: Path
    keys: Mapping[str, bytes]
    parameters: Parameters = field(default_factory=Parameters)
    artifact_type: ArtifactType = ArtifactType.FILESYSTEM
    cancelled: bool = False
    limits: Limits = DEFAULT_LIMITS
    demanded: bool = False
    digests_wanted: bool = False
    read_digests_wanted: tuple[str, ...] = ()
    acquired: list[tuple[bool, int | None]] = field(default_factory=list)
    updated: list[Path] = field(default_factory=list)
    progressed: list[tuple[int, int | None]] = field(default_factory=list)
    reports: list[dict[str, Any]] = field(default_factory=list)

    def localize(self) -> Path:
        return self.directory

    def key(self, uri: str) -> bytes:
        if uri not in self.keys:
            raise NotFoundError(f"nothing at {uri}")
        return self.keys[uri]

    def acquire_location(self, *, confidential: bool = False, size_hint: int | None = None) -> Path:
        self.acquired.append((confidential, size_hint))
        self.target.mkdir()
        return self.target

    def update_location(self, location: str | Path, artifact_type: ArtifactType = ArtifactType.FILESYSTEM) -> None:
        self.updated.append(Path(location))

    def progress(self, done: int, total: int | None = None, what: str = "") -> None:
        self.progressed.append((done, total))

    def report(self, **what: Any) -> None:
        self.reports.append(what)

    def as_model(self) -> AgentModel:
        return cast(AgentModel, self)


MakeTree = Callable[[Mapping[str, bytes]], Path]
Encrypt = Callable[..., None]


@pytest.fixture
def make_tree(tmp_path: Path) -> MakeTree:
    """Write files (path -> content) below a fresh directory, and return it."""

    return lambda files: write_files(tmp_path / f"model{len(os.listdir(tmp_path))}", files)


@pytest.fixture
def read_tree() -> Callable[[Path], dict[str, bytes]]:
    """The files below a directory, path -> content."""

    def read(root: Path) -> dict[str, bytes]:
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    return read


@pytest.fixture(scope="session")
def identity() -> X25519Identity:
    return X25519Identity.generate()


@pytest.fixture
def encrypt_in_place() -> Encrypt:
    """Replace a file by its encrypted form."""

    def encrypt(path: Path, *recipients: Recipient, **options: Any) -> None:
        encrypt_file(path, path.with_name(path.name + ".age"), recipients, **options)
        path.unlink()

    return encrypt


@pytest.fixture
def fake_model(tmp_path: Path, identity: X25519Identity) -> Callable[..., FakeModel]:
    """Make a model for the agent, with the key at ``file:/key``."""

    def make(directory: Path, *parameters: tuple[str, str], **more: bytes) -> FakeModel:
        keys = {"file:/key": identity.export().encode() + b"\n"} | {
            f"file:/{name}": data for name, data in more.items()
        }
        given = Parameters(parameters or [("identity", "file:/key")])
        return FakeModel(directory, tmp_path / "target", keys, given)

    return make


# For the tests of the age library.

Sealer = Callable[[bytes], bytes]


@pytest.fixture(scope="session")
def crew() -> Iterator[Callable[[int], Workers]]:
    """``crew(n)``: workers with that many threads, closed at the end."""
    with ExitStack() as stack:
        yield cache(lambda threads: stack.enter_context(Workers(threads)))


@pytest.fixture(scope="session")
def seal(identity: X25519Identity) -> Sealer:
    """Encrypts bytes to ``identity``."""

    def encrypt(plain: bytes) -> bytes:
        target = io.BytesIO()
        encrypt_stream(io.BytesIO(plain), target, [identity.recipient], threads=1)
        return target.getvalue()

    return encrypt


@pytest.fixture(scope="session")
def plain() -> bytes:
    """Three chunks and a bit."""
    return os.urandom(3 * CHUNK + 1000)


@pytest.fixture(scope="session")
def sealed(plain: bytes, seal: Sealer) -> bytes:
    return seal(plain)


# For the tests of the commands.


@pytest.fixture
def run() -> Callable[..., Result]:
    """``run("encrypt", ...)``: exceptions that a command should have turned into an exit code surface."""

    def invoke(name: str, *arguments: str | Path, status: int = 0, **options: Any) -> Result:
        module, _, attribute = register_commands()[name].target.partition(":")
        command = getattr(import_module(module), attribute)
        result = CliRunner().invoke(command, [str(each) for each in arguments], **options)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == status, result.output
        return result

    return invoke


@pytest.fixture
def key_file(tmp_path: Path, identity: X25519Identity) -> Path:
    path = tmp_path / "key.txt"
    path.write_text(f"# public key: {identity.recipient}\n{identity.export()}\n")
    return path


# For the tests of the key providers.


@dataclass
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class Service:
    """``answer(asked)`` gives status, headers and body."""

    answer: Callable[[Asked], tuple[int, dict[str, str], bytes]]
    asked: list[Asked] = field(default_factory=list)
    url: str = ""


@pytest.fixture
def service() -> Iterator[Service]:
    told = Service(lambda _asked: (404, {}, b""))

    def handle(request: Request) -> bool:
        asked = Asked(request.command, request.path, dict(request.headers), request.body())
        told.asked.append(asked)
        status, headers, answer = told.answer(asked)
        request.answer(status, answer, headers)
        return True

    with FileServer() as server:
        server.handlers.append(handle)
        told.url = server.url
        yield told
