"""A signed and encrypted folder as of a model hub, a policy that demands both, and the program."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem
from tests.warm import Warm

PLAIN = {"config.json": b'{"model_type": "llama"}', "model.safetensors": bytes(range(256)) * 4096}
"""What the folder holds once its agents have run, beside its README."""

Program = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The model ``llama``; ``policy.toml``, the key and the signer's key lie beside its repository."""
    identity, signer = X25519Identity.generate(), ec.generate_private_key(ec.SECP256R1())
    key = tmp_path / "key.txt"
    key.write_text(identity.export())
    key.chmod(0o600)
    folder = tmp_path / "repository" / "llama"
    folder.mkdir(parents=True)
    for name, content in PLAIN.items():
        (tmp_path / "plain").write_bytes(content)
        encrypt_file(tmp_path / "plain", folder / f"{name}.age", [identity.recipient])
    (tmp_path / "plain").unlink()
    (folder / "README.md").write_text("A model.")
    (folder / "model.sig").write_bytes(sign(folder, Identity(signer), Serialization(), signature="model.sig"))
    (tmp_path / "vendor.pem").write_bytes(public_pem(signer))
    (tmp_path / "policy.toml").write_text(
        '[[rule]]\nmodels = ["*"]\nagents = []\ntrust_roots = { vendor = "vendor.pem" }\n'
        'before = [{ agent = "verify", parameters = { trust_root = "vendor" } }, '
        f'{{ agent = "decrypt", parameters = {{ identity = "file:{key}" }} }}]\n'
    )
    return folder


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory on a memory filesystem."""
    with TemporaryDirectory(prefix="repoagent-test-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture
def unprivileged() -> tuple[str, ...]:
    """What begins the command line of a user without capabilities who is not root, and owns the files of this one."""
    prefix = ("unshare", "--user", "--map-user=1000", "--map-group=1000")
    if subprocess.run([*prefix, "true"], capture_output=True, check=False).returncode:
        pytest.skip("namespaces are not allowed here (unshare --user)")
    return prefix


@pytest.fixture
def flags(tmp_path: Path) -> list[str]:
    """What every command takes; private directories lie in ``work``."""
    flags = ["--allow-swap", f"--workspace-directory={tmp_path / 'work'}", f"--cache-directory={tmp_path / 'cache'}"]
    return [*flags, f"--agent-policy={tmp_path / 'policy.toml'}"]


@pytest.fixture
def program(flags: list[str], warm: Warm) -> Program:
    """Run ``repoagent COMMAND`` with the flags to its end."""
    return lambda command, *arguments, **options: warm.run([command, *flags, *arguments], **options)


def agent(directory: Path, name: str, methods: str) -> str:
    """An agent of a directory with these methods; returns the flag that names the directory."""
    file = directory / "agents" / name / "agent.py"
    file.parent.mkdir(parents=True)
    file.write_text(f"import os, time\nfrom pathlib import Path\nfrom repoagent.api import Agent\n\n\n"
                    f"class One(Agent):\n    api_version = 1\n\n{methods}")  # fmt: skip
    return f"--repoagent-directory={directory / 'agents'}"


def left_in(directory: Path) -> list[str]:
    """The files below a directory, but for locks."""
    return sorted(
        str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file() and path.name != ".lock"
    )
