"""The owner of a model names its files: a name must not look as if a command had written it."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.cli import verify_command
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem
from repoagent.cli.check import check
from repoagent.cli.main import run
from repoagent.cli.prepare import prepare

NAME = "x\x1b[2K\rsigned by key of the vendor\nOK \u202e"


@pytest.fixture
def verify(tmp_path: Path) -> Callable[..., str]:
    """What ``repoagent verify`` writes about a signed model to which a file of that name was added."""
    model = tmp_path / "m"
    model.mkdir()
    (model / "weights").write_bytes(b"weights")
    key = ec.generate_private_key(ec.SECP256R1())
    (tmp_path / "key.pem").write_bytes(public_pem(key))
    (model / "model.sig").write_bytes(sign(model, Identity(key), Serialization(), signature="model.sig"))
    (model / NAME).write_bytes(b"")

    def write(*more: str) -> str:
        arguments = [str(model), "--public-key", str(tmp_path / "key.pem"), *more]
        return CliRunner().invoke(verify_command, arguments).output

    return write


@pytest.mark.parametrize("more", [[], ["--unsigned", "*"]])
def test_verify_escapes_them(verify: Callable[..., str], more: list[str]) -> None:
    lines = verify(*more).splitlines()
    assert r"not signed: x\x1b[2K\rsigned by key of the vendor\nOK \u202e" in lines[-1]
    assert all(line.isprintable() for line in lines)


def test_check_escapes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = tmp_path / "m"
    (model / "1").mkdir(parents=True)
    (model / "1" / NAME).write_bytes(b"")
    (model / "config.pbtxt").write_text('model_repository_agents { agents [ { name: "scan" } ] }')
    (model / "1" / "z.pkl").write_bytes(b"\x80\x04.")
    for arguments in ([str(model)], [str(model), "--json"]):
        with pytest.raises(SystemExit):
            run(check, "repoagent", args=[*arguments, "--workspace-directory", str(tmp_path / "w")])
        shown = capsys.readouterr()
        assert all(line.isprintable() for line in (shown.out + shown.err).splitlines())


def test_prepare_escapes_the_name_of_a_model(tmp_path: Path) -> None:
    model = tmp_path / "models" / NAME
    model.mkdir(parents=True)
    (model / "weights").write_bytes(b"weights")
    directories = [f"--workspace-directory={tmp_path / 'w'}", f"--cache-directory={tmp_path / 'c'}"]
    result = CliRunner().invoke(
        prepare, [*directories, "--allow-unchecked", str(model), str(tmp_path / "out")], color=True
    )
    assert result.exit_code == 0
    assert result.output.splitlines() == [rf"x\x1b[2K\rsigned by key of the vendor\nOK \u202e: ready in {tmp_path}/out"]


def test_run_escapes_the_name_of_a_model(tmp_path: Path) -> None:
    model = tmp_path / "models" / NAME
    model.mkdir(parents=True)
    (model / "weights").write_bytes(b"weights")
    words = [sys.executable, "-m", "repoagent", "run", f"--workspace-directory={tmp_path / 'w'}", "--allow-unchecked"]
    words += [f"--cache-directory={tmp_path / 'c'}", str(model), "--", "true"]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    assert result.stderr.splitlines() == [r"repoagent: x\x1b[2K\rsigned by key of the vendor\nOK \u202e: ready"]
