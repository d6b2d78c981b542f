"""A folder without versions, such as one of a model hub, for a command: plain weights, and rules about backends."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity

pytestmark = pytest.mark.slow

Check = Callable[[str], "subprocess.CompletedProcess[str]"]
DECRYPT = (
    '[[rule]]\nmodels = ["*"]\nagents = []\n'
    'before = [{{ agent = "decrypt", parameters = {{ identity = "file:{}" }} }}]\n'
)
UNNAMED = "the policy limits the backends or platforms of the model, and neither judges a command"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Weights and their configuration, encrypted for ``key.txt`` beside it."""
    identity = X25519Identity.generate()
    (tmp_path / "key.txt").write_text(identity.export())
    (tmp_path / "key.txt").chmod(0o600)
    folder = tmp_path / "repository" / "llama"
    folder.mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_text(name)
        encrypt_file(tmp_path / name, folder / f"{name}.age", [identity.recipient])
    (folder / "README.md").write_text("plain")
    return folder


@pytest.fixture
def check(folder: Path, tmp_path: Path) -> Check:
    """``repoagent check`` of the folder under a policy."""

    def run(policy: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "policy.toml").write_text(policy)
        command = [sys.executable, "-m", "repoagent", "check", str(folder), "--allow-swap"]
        command += [f"--agent-policy={tmp_path / 'policy.toml'}", f"--workspace-directory={tmp_path / 'work'}"]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def test_a_folder_without_versions_is_ok_for_a_command(check: Check, tmp_path: Path) -> None:
    result = check(DECRYPT.format(tmp_path / "key.txt"))
    assert result.returncode == 0, result.stderr
    assert "llama: ok for a command; no server loads it: it has no version directory" in result.stdout
    assert "2 decrypted, 1 copied" in result.stdout


@pytest.mark.parametrize("name", ["model-00002.safetensors", "config.json", "code/modeling.py"])
def test_a_plain_file_beside_encrypted_ones_is_refused(check: Check, folder: Path, tmp_path: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("the owner's")
    if name == "config.json":
        (folder / "config.json.age").unlink()
    result = check(DECRYPT.format(tmp_path / "key.txt"))
    assert result.returncode == 1
    assert f"'{name}' outside of version directories is not encrypted" in result.stderr


def test_a_version_directory_does_not_have_plain_weights_accepted_beside_it(
    check: Check, folder: Path, tmp_path: Path
) -> None:
    """A copy of an encrypted file makes the folder one with versions; a command still reads what is at the top."""
    (folder / "1").mkdir()
    (folder / "model.safetensors.age").rename(folder / "1" / "decoy.age")
    (folder / "model.safetensors").write_text("the owner's")
    result = check(DECRYPT.format(tmp_path / "key.txt"))
    assert result.returncode == 1
    assert "'model.safetensors' outside of version directories is not encrypted" in result.stderr


@pytest.mark.parametrize("limit", ['backends = ["onnxruntime"]', 'platforms = ["onnxruntime_onnx"]', "backends = []"])
def test_a_rule_about_backends_gives_no_command_the_model(check: Check, limit: str) -> None:
    result = check(f'[[rule]]\nmodels = ["*"]\n{limit}\n')
    assert result.returncode == 1
    assert UNNAMED in result.stderr
    named = check(f'[[rule]]\nmodels = ["*"]\n{limit}\ncommands = ["vllm"]\n')
    assert named.returncode == 0, named.stderr


def test_a_configuration_that_names_no_backend_does_not_lead_round_the_rule(check: Check, folder: Path) -> None:
    (folder / "config.pbtxt").write_text("max_batch_size: 8")
    result = check('[[rule]]\nmodels = ["*"]\nbackends = ["onnxruntime"]\n')
    assert result.returncode == 1
    assert UNNAMED in result.stderr


def test_a_rule_that_names_no_command_at_all_refuses(check: Check) -> None:
    result = check('[[rule]]\nmodels = ["*"]\ncommands = []\n')
    assert result.returncode == 1
    assert "the policy does not allow command 'any'; allowed: none" in result.stderr
