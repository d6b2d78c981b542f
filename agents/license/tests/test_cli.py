"""``repoagent license``."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from repoagent_license import host
from repoagent_license.cli import license_group
from repoagent_license.host import host_id, model_digest


@pytest.fixture
def keys(tmp_path: Path, private_key: Ed25519PrivateKey, public_pem: bytes) -> Path:
    pem = private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "vendor.key").write_bytes(pem)
    (tmp_path / "vendor.pem").write_bytes(public_pem)
    return tmp_path


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(license_group, [str(argument) for argument in arguments])
    return result.exit_code, result.output


def test_what_was_issued_is_shown(keys: Path) -> None:
    (keys / "m/1").mkdir(parents=True)
    (keys / "m/1/model.onnx").write_bytes(b"weights")
    issued = ["--model", "fraud-*", "--model", "credit", "--days", 30, "--host", "sha256:1", "--licensee", "ACME"]
    target = keys / "license.json"
    code, output = run("issue", "--key", keys / "vendor.key", *issued, "--content", keys / "m", "-o", target)
    assert (code, output.startswith(f"{target}: fraud-*, credit until ")) == (0, True), output
    code, output = run("show", target, "--public-key", keys / "vendor.pem")
    assert code == 0
    for line in ("models      fraud-*, credit", "hosts       sha256:1", "licensee    ACME"):
        assert line in output
    assert f"content     {model_digest(keys / 'm')}" in output


def test_a_license_that_is_over_is_marked(keys: Path) -> None:
    dates = ["--not-before", "2020-01-01", "--expires", "2021-01-01"]
    run("issue", "--key", keys / "vendor.key", "--model", "m", *dates, "-o", keys / "l")
    assert (
        "expires     2021-01-01T00:00:00+00:00 (over)"
        in run("show", keys / "l", "--public-key", keys / "vendor.pem")[1]
    )


def test_an_existing_license_is_replaced_with_force_only(keys: Path) -> None:
    arguments = ["issue", "--key", keys / "vendor.key", "--model", "m", "--days", 1, "-o", keys / "l"]
    assert run(*arguments)[0] == 0
    assert run(*arguments) == (1, f"repoagent license: {keys / 'l'} exists; --force replaces it\n")
    assert run(*arguments, "--force")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "give one of --expires and --days"),
        (["--days", "1", "--expires", "2030-01-01"], "give one of --expires and --days"),
        (["--expires", "2020-01-01"], "would end before it begins"),
    ],
)
def test_times_that_are_not_possible_are_refused(keys: Path, arguments: list[str], message: str) -> None:
    code, output = run("issue", "--key", keys / "vendor.key", "--model", "m", "-o", keys / "l", *arguments)
    assert (code, message in output) == (2, True)


@pytest.mark.parametrize("model", ["models/fraud-1", "./fraud-1", "/models/*", "..", ""])
def test_no_license_is_issued_for_a_path(keys: Path, model: str) -> None:
    """A server calls models by their names, so the license would be for nothing."""
    code, output = run("issue", "--key", keys / "vendor.key", "--model", model, "--days", 1, "-o", keys / "l")
    assert (code, "this is for names" in " ".join(output.split())) == (2, True)
    assert not (keys / "l").exists()


def test_another_kind_of_key_is_refused(keys: Path) -> None:
    code, output = run("issue", "--key", keys / "vendor.pem", "--model", "m", "--days", 1, "-o", keys / "l")
    assert (code, "is not a private Ed25519 key" in output) == (1, True)


def test_the_host_is_printed_without_the_identifier_of_the_machine(keys: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (keys / "machine-id").write_text("0123\n")
    monkeypatch.setattr(host.host_id, "__defaults__", ((keys / "machine-id",),))
    code, output = run("host")
    assert (code, output.strip()) == (0, host_id())
    assert "0123" not in output.removeprefix("sha256:")[:4]
