"""Each hostile chain in front of another server: refused by both commands, with no command run and nothing left."""

import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity

from tests.cli.conftest import Program, agent, flags, folder, left_in, memory, program
from tests.warm import Warm

__all__ = ["flags", "folder", "memory", "program"]
pytestmark = pytest.mark.slow
Refused = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(params=["prepare", "run"])
def refused(request: pytest.FixtureRequest, program: Program, folder: Path, memory: Path, tmp_path: Path) -> Refused:
    """Give the folder to another server by either command, which is to be refused; what it has written."""
    places: dict[str, list[str | Path]] = {
        "prepare": [folder, memory / "out"],
        "run": [f"--confidential-directory={memory}", folder, "--", "touch", tmp_path / "started"],
    }

    def call(*more: str, ended: int = 0) -> "subprocess.CompletedProcess[str]":
        """``ended`` is the status of a process that an agent has ended, with no time to remove anything."""
        result = program(request.param, *more, *places[request.param])
        assert result.returncode == (ended or 1), result.stderr
        assert not (tmp_path / "started").exists()
        if not ended:
            assert left_in(memory) == []
            assert left_in(tmp_path / "work") == []
            assert not (memory / "out").exists() or os.listdir(memory / "out") == []
        return result

    return call


def _other_content(folder: Path) -> None:
    (folder / "README.md").write_text("Another model.")


def _other_ciphertext(folder: Path) -> None:
    file = folder / "model.safetensors.age"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def _no_signature(folder: Path) -> None:
    (folder / "model.sig").unlink()


def _missing_file(folder: Path) -> None:
    (folder / "config.json.age").unlink()


def _link(folder: Path) -> None:
    (folder / "README.md").unlink()
    (folder / "README.md").symlink_to("/etc/passwd")


def _fifo(folder: Path) -> None:
    os.mkfifo(folder / "pipe")


def _agents_of_its_own(folder: Path) -> None:
    (folder / "config.pbtxt").write_text('model_repository_agents { agents { name: "checksum" } }')


CHANGES: Final = [
    _other_content, _other_ciphertext, _no_signature, _missing_file, _link, _fifo, _agents_of_its_own
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__.strip("_"))
def test_a_folder_that_its_owner_changed(refused: Refused, folder: Path, change: Callable[[Path], None]) -> None:
    change(folder)
    refused()


@pytest.mark.parametrize("name", ["model-00002.safetensors", "config.json", "code/modeling.py"])
def test_plain_files_beside_encrypted_ones(refused: Refused, folder: Path, tmp_path: Path, name: str) -> None:
    """Without ``verify``, which would refuse what is not signed."""
    (tmp_path / "policy.toml").write_text(
        '[[rule]]\nmodels = ["*"]\nagents = []\n'
        f'before = [{{ agent = "decrypt", parameters = {{ identity = "file:{tmp_path}/key.txt" }} }}]\n'
    )
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("the owner's")
    (folder / f"{name}.age").unlink(missing_ok=True)
    assert f"'{name}' outside of version directories is not encrypted" in refused().stderr


@pytest.fixture
def after(tmp_path: Path) -> Callable[[str], str]:
    """An agent with this ``load``, called once the plaintext is there; the flag that names its directory."""

    def add(load: str) -> str:
        where = agent(tmp_path, "hostile", f"    def load(self, model):\n        {load}\n")
        policy = tmp_path / "policy.toml"
        policy.write_text(f'{policy.read_text()}after = ["hostile"]\n')
        return where

    return add


@pytest.mark.parametrize(
    "load",
    [
        "raise ValueError('no')",
        "raise SystemExit(0)",
        "raise KeyboardInterrupt",
        "raise GeneratorExit",
        "raise MemoryError",
        "return True",
        "yield",
    ],
)
def test_agents_that_raise_and_return_what_ends_programs(
    refused: Refused, after: Callable[[str], str], load: str
) -> None:
    """Status 0 would start the server behind an init container."""
    assert "agent 'hostile'" in refused(after(load)).stderr


@pytest.mark.parametrize(("load", "status"), [("os.kill(os.getpid(), 9)", -9), ("os._exit(0)", 1), ("os._exit(3)", 3)])
def test_an_end_within_an_agent_is_a_failure_and_leaves_nothing_to_the_next_start(
    refused: Refused, after: Callable[[str], str], folder: Path, load: str, status: int
) -> None:
    where = after(load)
    refused(where, ended=status)
    _other_content(folder)
    refused(where)


@pytest.mark.parametrize("command", ["prepare", "run"])
def test_a_signal_within_an_agent_is_the_status(
    program: Program, after: Callable[[str], str], folder: Path, memory: Path, tmp_path: Path, command: str
) -> None:
    where = after("os.kill(os.getpid(), 15)")
    last = [memory / "out"] if command == "prepare" else ["--", "touch", tmp_path / "started"]
    result = program(command, where, f"--confidential-directory={memory}", folder, *last)
    assert result.returncode == 128 + signal.SIGTERM, result.stderr
    assert not (tmp_path / "started").exists()
    assert left_in(memory) == []
    assert left_in(tmp_path / "work") == []


# A folder without versions, such as one of a model hub, for a command: plain weights, and rules about backends.

Check = Callable[[str], "subprocess.CompletedProcess[str]"]
DECRYPT = (
    '[[rule]]\nmodels = ["*"]\nagents = []\n'
    'before = [{{ agent = "decrypt", parameters = {{ identity = "file:{}" }} }}]\n'
)
UNNAMED = "the policy limits the backends or platforms of the model, and neither judges a command"


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """Weights and their configuration, encrypted for ``key.txt`` beside it."""
    identity = X25519Identity.generate()
    (tmp_path / "key.txt").write_text(identity.export())
    (tmp_path / "key.txt").chmod(0o600)
    plain = tmp_path / "repository" / "llama"
    plain.mkdir(parents=True)
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_text(name)
        encrypt_file(tmp_path / name, plain / f"{name}.age", [identity.recipient])
    (plain / "README.md").write_text("plain")
    return plain


@pytest.fixture
def check(plain: Path, tmp_path: Path, warm: Warm) -> Check:
    """``repoagent check`` of the folder under a policy."""

    def run(policy: str) -> "subprocess.CompletedProcess[str]":
        (tmp_path / "policy.toml").write_text(policy)
        places = [f"--agent-policy={tmp_path / 'policy.toml'}", f"--workspace-directory={tmp_path / 'work'}"]
        return warm.run(["check", plain, "--allow-swap", *places])

    return run


def test_a_folder_without_versions_is_ok_for_a_command(check: Check, tmp_path: Path) -> None:
    result = check(DECRYPT.format(tmp_path / "key.txt"))
    assert result.returncode == 0, result.stderr
    assert "llama: ok for a command; no server loads it: it has no version directory" in result.stdout
    assert "2 decrypted, 1 copied" in result.stdout


@pytest.mark.parametrize("name", ["model-00002.safetensors", "config.json", "code/modeling.py"])
def test_a_plain_file_beside_encrypted_ones_is_refused(check: Check, plain: Path, tmp_path: Path, name: str) -> None:
    (plain / name).parent.mkdir(exist_ok=True)
    (plain / name).write_text("the owner's")
    if name == "config.json":
        (plain / "config.json.age").unlink()
    result = check(DECRYPT.format(tmp_path / "key.txt"))
    assert result.returncode == 1
    assert f"'{name}' outside of version directories is not encrypted" in result.stderr


def test_a_version_directory_does_not_have_plain_weights_accepted_beside_it(
    check: Check, plain: Path, tmp_path: Path
) -> None:
    """A copy of an encrypted file makes the folder one with versions; a command still reads what is at the top."""
    (plain / "1").mkdir()
    (plain / "model.safetensors.age").rename(plain / "1" / "decoy.age")
    (plain / "model.safetensors").write_text("the owner's")
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


def test_a_configuration_that_names_no_backend_does_not_lead_round_the_rule(check: Check, plain: Path) -> None:
    (plain / "config.pbtxt").write_text("max_batch_size: 8")
    result = check('[[rule]]\nmodels = ["*"]\nbackends = ["onnxruntime"]\n')
    assert result.returncode == 1
    assert UNNAMED in result.stderr


def test_a_rule_that_names_no_command_at_all_refuses(check: Check) -> None:
    result = check('[[rule]]\nmodels = ["*"]\ncommands = []\n')
    assert result.returncode == 1
    assert "the policy does not allow command 'any'; allowed: none" in result.stderr
