"""``repoagent attest verify``: what agrees, and every way not to."""

import base64
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_attest.cli import attest_group
from repoagent_attest.envelope import sign

from agents.attest.tests.conftest import Load

POLICY = '[[rule]]\nmodels = ["*"]\nbefore = [{ agent = "checksum", parameters = { "SHA256:1/model.py" = "%s" } }]\n'


@pytest.fixture
def receipt(load: Load, receipts: Path) -> Path:
    load()
    (path,) = receipts.glob("*.vsa.json")
    return path


def verify(receipt: Path, public: Path, *options: object) -> tuple[int, str]:
    words = ["verify", str(receipt), "--public-key", str(public), *map(str, options)]
    result = CliRunner().invoke(attest_group, words)
    return result.exit_code, result.output


def test_it_agrees_with_the_model(receipt: Path, public_file: Path, model: Path) -> None:
    status, output = verify(receipt, public_file, "--model", model)
    assert status == 0
    assert output.startswith("urn:repoagent:model:m: verified by urn:repoagent:server\n")
    assert output.endswith(": OK\n")


@pytest.mark.parametrize("change", ["byte", "new", "missing"])
def test_an_old_receipt_fails_when_a_byte_of_the_model_has_changed(
    change: str, receipt: Path, public_file: Path, model: Path
) -> None:
    match change:
        case "byte":
            (model / "1/model.py").write_bytes(b"cude")
            expected = "changed since the receipt was made: 1/model.py\n"
        case "new":
            (model / "2").write_bytes(b"")
            expected = "new since the receipt was made: 2\n"
        case _:
            (model / "1/model.py").unlink()
            expected = "missing since the receipt was made: 1/model.py\n"
    assert verify(receipt, public_file, "--model", model) == (1, expected)


def test_without_its_details_it_fails_as_well(receipt: Path, public_file: Path, model: Path) -> None:
    receipt.with_name(receipt.name.replace(".vsa.", ".load.")).unlink()
    assert verify(receipt, public_file, "--model", model)[0] == 0
    (model / "1/model.py").write_bytes(b"cude")
    status, output = verify(receipt, public_file, "--model", model)
    assert (status, output) == (1, "m is another model, or has changed since the receipt was made\n")


def test_what_a_server_sends_is_verified_in_one_piece(
    load: Load, public_file: Path, model: Path, tmp_path: Path
) -> None:
    chain = load()
    assert chain.attestation is not None
    (tmp_path / "sent.json").write_bytes(chain.attestation.document)
    assert verify(tmp_path / "sent.json", public_file, "--model", model)[0] == 0


def _changed(receipt: Path, **members: Any) -> None:
    document = json.loads(receipt.read_text())
    document["dsseEnvelope"].update(members)
    receipt.write_text(json.dumps(document))


def test_any_changed_byte_of_the_payload_is_refused(receipt: Path, public_file: Path) -> None:
    whole = base64.b64decode(json.loads(receipt.read_text())["dsseEnvelope"]["payload"])
    for position in range(0, len(whole), 23):
        changed = bytearray(whole)
        changed[position] ^= 1
        _changed(receipt, payload=base64.b64encode(changed).decode())
        status, output = verify(receipt, public_file)
        assert (status, "changed after it was signed" in output) == (1, True)


def test_another_key_is_refused(receipt: Path, public_file: Path) -> None:
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    other = ec.generate_private_key(ec.SECP256R1()).public_key()
    public_file.write_bytes(other.public_bytes(serialization.Encoding.PEM, form))
    status, output = verify(receipt, public_file)
    assert (status, "not signed with this key" in output) == (1, True)


def test_details_of_another_load_are_refused(
    receipt: Path, load: Load, receipts: Path, public_file: Path, model: Path
) -> None:
    details = receipt.with_name(receipt.name.replace(".vsa.", ".load."))
    (model / "1/model.py").write_bytes(b"cude")
    load()
    (other,) = set(receipts.glob("*.load.json")) - {details}
    other.replace(details)
    status, output = verify(receipt, public_file)
    assert (status, "those of another receipt" in output) == (1, True)


def test_details_are_no_summary(receipt: Path, public_file: Path) -> None:
    details = receipt.with_name(receipt.name.replace(".vsa.", ".load."))
    status, output = verify(details, public_file)
    assert (status, "another predicateType" in output) == (1, True)


def test_a_failed_load_is_not_agreed_to(
    receipt: Path, public_file: Path, private_key: ec.EllipticCurvePrivateKey
) -> None:
    statement = json.loads(base64.b64decode(json.loads(receipt.read_text())["dsseEnvelope"]["payload"]))
    statement["predicate"]["verificationResult"] = "FAILED"
    receipt.write_text(json.dumps(sign(json.dumps(statement).encode(), private_key)))
    status, output = verify(receipt, public_file)
    assert (status, "the load was refused" in output) == (1, True)


def test_a_policy_that_it_does_not_name(receipt: Path, public_file: Path, tmp_path: Path) -> None:
    (tmp_path / "policy.toml").write_text(POLICY % ("0" * 64))
    status, output = verify(receipt, public_file, "--policy", tmp_path / "policy.toml")
    assert (status, output) == (1, "the model was loaded without a policy\n")


@pytest.mark.parametrize(
    "document",
    ["", "[]", "{}", '{"summary": 1}', '{"dsseEnvelope": {"payloadType": 1}}', '{"dsseEnvelope": []}', "\x00"],
)
def test_what_is_no_receipt(document: str, tmp_path: Path, public_file: Path) -> None:
    (tmp_path / "r").write_text(document)
    assert verify(tmp_path / "r", public_file)[0] in (1, 2)


@pytest.mark.parametrize("payload", ["1", "[]", "{}", '{"predicateType": "https://slsa.dev/verification_summary/v1"}'])
def test_what_is_signed_and_no_receipt(
    payload: str, tmp_path: Path, public_file: Path, private_key: ec.EllipticCurvePrivateKey
) -> None:
    (tmp_path / "r").write_text(json.dumps(sign(payload.encode(), private_key)))
    status, output = verify(tmp_path / "r", public_file)
    assert status == 1
    assert output.startswith("repoagent: ")


def test_a_kill_between_the_receipt_and_serving_leaves_one_that_claims_a_verification_only(
    tmp_path: Path, key_file: Path, receipts: Path, model: Path, public_file: Path
) -> None:
    """The process kills itself where the audit log is told, after the receipt was written."""
    program = f"""
import os, signal, sys
from repoagent.loader.auditing import LoadAudit
LoadAudit.attest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
sys.argv[1:] = ["check", {str(model)!r}, "--attest-key", {f"file:{key_file}"!r}, "--attest-directory",
    {str(receipts)!r}, "--cache-directory", {str(tmp_path / "cache")!r},
    "--workspace-directory", {str(tmp_path / "workspace")!r}]
from repoagent.cli.main import main
main()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=False)
    assert done.returncode == -9, done.stderr
    (receipt,) = receipts.glob("*.vsa.json")
    assert verify(receipt, public_file, "--model", model)[0] == 0
    document = json.loads(receipt.read_text())["dsseEnvelope"]["payload"]
    predicate = json.loads(base64.b64decode(document))["predicate"]
    assert set(predicate) == {
        "verifier", "timeVerified", "resourceUri", "policy", "inputAttestations", "verificationResult",
        "verifiedLevels", "slsaVersion",
    }  # fmt: skip
    assert "serv" not in json.dumps(predicate).replace("urn:repoagent:server", "")
