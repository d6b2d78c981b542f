"""A key, a directory for receipts, and loads that leave one."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from repoagent.loader.assembly import LoaderOptions, open_loader
from repoagent.loader.attesting import AttestSettings
from repoagent.loader.chain import LoadedChain
from repoagent.loader.loader import Loader
from repoagent.loader.plugins import PluginManager
from repoagent.storage.repositories.sources import open_source
from repoagent.testing import write_files

NewLoader = Callable[..., Loader]
Load = Callable[..., LoadedChain]
FILES = {"1/model.py": b"code", "config.pbtxt": b'name: "m"\nbackend: "python"\n'}


@pytest.fixture
def private_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


@pytest.fixture
def key_file(tmp_path: Path, private_key: ec.EllipticCurvePrivateKey) -> Path:
    form, none = serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    path = tmp_path / "receipts.key"
    path.write_bytes(private_key.private_bytes(serialization.Encoding.PEM, form, none))
    return path


@pytest.fixture
def public_file(tmp_path: Path, private_key: ec.EllipticCurvePrivateKey) -> Path:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    path = tmp_path / "receipts.pem"
    path.write_bytes(private_key.public_key().public_bytes(serialization.Encoding.PEM, form))
    return path


@pytest.fixture
def receipts(tmp_path: Path) -> Path:
    path = tmp_path / "receipts"
    path.mkdir()
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_files(tmp_path / "repository" / "m", FILES)


@pytest.fixture
def new_loader(tmp_path: Path, key_file: Path, receipts: Path) -> Iterator[NewLoader]:
    """Opens loaders that make receipts; ``policy`` is a policy's text, other arguments are settings."""
    with ExitStack() as stack:

        def make(*, policy: str = "", audit: object = None, **settings: object) -> Loader:
            wanted = {"key": f"file:{key_file}", "directory": receipts} | settings
            options: dict[str, object] = {"attest": AttestSettings(**wanted)}  # type: ignore[arg-type]
            if policy:
                options["agent_policy"] = tmp_path / "policy.toml"
                (tmp_path / "policy.toml").write_text(policy)
            if audit is not None:
                options["audit"] = audit
            places = {
                "repoagent_directory": None,
                "workspace_directory": tmp_path / "workspace",
                "cache_directory": tmp_path / "cache",
                "allow_swap": True,
            }
            plugins = stack.enter_context(PluginManager())
            return open_loader(LoaderOptions(**places, **options), plugins, stack)  # type: ignore[arg-type]

        yield make


@pytest.fixture
def load(new_loader: NewLoader, model: Path) -> Load:
    """Load the model as a server does, up to the moment before it serves."""

    def run(**settings: object) -> LoadedChain:
        chain = new_loader(**settings).load(open_source("m", str(model)))
        chain.attest([1])
        return chain

    return run
