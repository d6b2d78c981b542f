"""``repoagent sign`` and ``repoagent verify``."""

from pathlib import Path

import pytest
from click import Command
from click.testing import CliRunner, Result
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.cli import sign_command, verify_command

from agents.verify.tests.issuing import issue, key_pem, public_pem

README = (Path(__file__).parents[1] / "README.md").read_text()


def run(command: Command, *arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


@pytest.fixture
def keys(tmp_path: Path, key: ec.EllipticCurvePrivateKey) -> tuple[Path, Path]:
    private, public = tmp_path / "private.pem", tmp_path / "public.pem"
    private.write_bytes(key_pem(key))
    public.write_bytes(public_pem(key))
    return private, public


def test_sign_then_verify(model: Path, keys: tuple[Path, Path]) -> None:
    private, public = keys
    assert run(sign_command, model, "--key", private).exit_code == 0
    result = run(verify_command, model, "--public-key", public)
    assert result.exit_code == 0
    assert "3 files, 709 bytes, sha256:" in result.stdout
    assert run(verify_command, model, "--public-key", public, "--quiet").stdout == ""


def test_one_file_is_not_counted_as_files(tmp_path: Path, keys: tuple[Path, Path]) -> None:
    model = tmp_path / "alone"
    model.mkdir()
    (model / "weights.bin").write_bytes(b"weights")
    assert run(sign_command, model, "--key", keys[0]).exit_code == 0
    assert "\n1 file, 7 bytes, sha256:" in run(verify_command, model, "--public-key", keys[1]).stdout


def test_a_signature_is_replaced_only_by_force(model: Path, keys: tuple[Path, Path]) -> None:
    run(sign_command, model, "--key", keys[0])
    result = run(sign_command, model, "--key", keys[0])
    assert (result.exit_code, "--force replaces it" in result.stderr) == (1, True)
    assert run(sign_command, model, "--key", keys[0], "--force").exit_code == 0
    assert sorted(path.name for path in model.iterdir()) == ["1", "config.pbtxt", "model.sig"]


def test_a_changed_model_ends_with_1_and_names_the_file(model: Path, keys: tuple[Path, Path]) -> None:
    run(sign_command, model, "--key", keys[0])
    (model / "1" / "model.onnx").write_bytes(b"other")
    result = run(verify_command, model, "--public-key", keys[1])
    assert (result.exit_code, result.stderr) == (1, "repoagent verify: changed after signing: 1/model.onnx\n")


def test_a_signature_may_lie_elsewhere(model: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    aside = tmp_path / "aside.sig"
    assert run(sign_command, model, "--key", keys[0], "--signature", aside).exit_code == 0
    assert run(verify_command, model, "--public-key", keys[1], "--signature", aside).exit_code == 0


def test_certificates_sign_and_verify(model: Path, tmp_path: Path) -> None:
    root = issue("root", authority=True)
    leaf = issue("leaf", root)
    for name, data in {"root.pem": root.pem, "leaf.pem": leaf.pem, "leaf.key": leaf.key_pem}.items():
        (tmp_path / name).write_bytes(data)
    signed = run(sign_command, model, "--key", tmp_path / "leaf.key", "--certificate", tmp_path / "leaf.pem")
    assert signed.exit_code == 0
    trusting = ("--certificate", tmp_path / "root.pem")
    assert "signed by CN=leaf" in run(verify_command, model, *trusting, "--subject", "CN=leaf").stdout
    assert run(verify_command, model, *trusting, "--subject", "CN=other").exit_code == 1
    assert "expired" in run(verify_command, model, *trusting, "--at", "2199-01-01").stderr


def test_wrong_use_ends_with_a_message(model: Path, keys: tuple[Path, Path], tmp_path: Path) -> None:
    assert run(verify_command, model).exit_code == 2
    assert "not signed" in run(verify_command, model, "--public-key", keys[1]).stderr
    assert "another key" in _with_foreign_certificate(model, keys, tmp_path).stderr
    assert "a block of another kind" in run(verify_command, model, "--public-key", keys[0]).stderr
    assert "plain relative path" in run(sign_command, model, "--key", keys[0], "--ignore", "../x").stderr


def _with_foreign_certificate(model: Path, keys: tuple[Path, Path], tmp_path: Path) -> Result:
    (tmp_path / "foreign.pem").write_bytes(issue("foreign").pem)
    return run(sign_command, model, "--key", keys[0], "--certificate", tmp_path / "foreign.pem")


@pytest.mark.parametrize("command", [sign_command, verify_command], ids=["sign", "verify"])
def test_every_option_is_documented(command: Command) -> None:
    for parameter in command.params:
        if parameter.param_type_name == "option":
            assert f"`{parameter.opts[0]}`" in README
