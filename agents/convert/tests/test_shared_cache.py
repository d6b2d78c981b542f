"""Two servers with separate caches: the second takes what the first has converted and signed, as its policy says."""

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from tests.warm import Warm

pytestmark = pytest.mark.slow

Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def check(tmp_path: Path, save: Callable[..., Path], perceptron: object, warm: Warm) -> Check:
    save(perceptron)
    config = 'backend: "onnxruntime"\nmodel_repository_agents { agents [ { name: "convert" } ] }\n'
    (tmp_path / "source" / "config.pbtxt").write_text(config)

    def run(site: str, *flags: str, policy: str = "") -> subprocess.CompletedProcess[str]:
        (tmp_path / "policy.toml").write_text(f'[[rule]]\nmodels = ["*"]\n{policy}\n')
        places = [f"--{name}-directory={tmp_path / site / name}" for name in ("workspace", "cache")]
        shared = [f"--conversion-cache={tmp_path / 'shared'}", f"--agent-policy={tmp_path / 'policy.toml'}"]
        words = ["check", str(tmp_path / "source"), *places, *shared, *flags]
        return warm.run(words)

    return run


def test_a_policy_names_the_builders(check: Check, tmp_path: Path) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "ci.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "ci.pem").write_bytes(key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    only = 'builders = { ci = "ci.pem" }\nconversions = "shared-only"'
    refused = check("second", policy=only)
    assert refused.returncode == 1
    assert "takes only conversions that its builders have signed" in refused.stderr
    first = check("first", f"--conversion-sign-key=file:{tmp_path / 'ci.key'}")
    assert first.returncode == 0, first.stderr
    assert "built after" in first.stdout
    second = check("second", policy=only)
    assert second.returncode == 0, second.stderr
    assert "from the shared cache, built by ci" in second.stdout
