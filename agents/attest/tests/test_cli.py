"""``repoagent attest verify``: what agrees, and every way not to."""

import base64
import hashlib
import json
import os
import subprocess
import sys
import threading
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_attest.cli import attest_group

from agents.attest.tests.conftest import Load, NewLoader
from repoagent.api.envelopes import sign
from repoagent.config import ModelConfig
from repoagent.storage.repositories.sources import open_source
from tests.file_server import FileServer, Request
from tests.warm import Warm

POLICY = '[[rule]]\nmodels = ["*"]\nbefore = [{ agent = "checksum", parameters = { "SHA256:1/model.py" = "%s" } }]\n'


@pytest.fixture
def receipt(load: Load, receipts: Path) -> Path:
    load()
    (path,) = receipts.glob("*.vsa.json")
    return path


def verify(receipt: Path | str, public: Path, *options: object) -> tuple[int, str]:
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


def test_a_file_whose_name_is_a_sentence_writes_no_line_of_its_own(
    receipt: Path, public_file: Path, model: Path
) -> None:
    (model / "x\x1b[2K\rsha256:00: OK\n\u202e").write_bytes(b"")
    status, output = verify(receipt, public_file, "--model", model)
    assert (status, output.count("\n"), "OK\n" in output) == (1, 1, False)
    assert output.rstrip("\n").isprintable()


def test_what_is_neither_a_file_nor_a_directory_is_not_in_a_model(
    receipt: Path, public_file: Path, model: Path
) -> None:
    os.mkfifo(model / "pipe")
    status, output = verify(receipt, public_file, "--model", model)
    assert (status, output) == (1, "neither a file nor a directory: pipe\n")


def test_a_model_that_no_agent_saw_is_not_stated_to_have_passed_any(receipt: Path) -> None:
    payload = json.loads(base64.b64decode(json.loads(receipt.read_text())["dsseEnvelope"]["payload"]))
    assert payload["predicate"]["verifiedLevels"] == ["REPOAGENT_OWN_CONFIGURATION"]


def test_details_with_other_files_than_the_subject_do_not_agree_with_those(
    receipt: Path, public_file: Path, private_key: ec.EllipticCurvePrivateKey, model: Path
) -> None:
    """A key may sign what does not agree with itself: the model is that of the summary."""
    statement = json.loads(base64.b64decode(json.loads(receipt.read_text())["dsseEnvelope"]["payload"]))
    statement["subject"][0]["digest"]["sha256"] = "0" * 64
    receipt.write_text(json.dumps(sign(json.dumps(statement).encode(), private_key)))
    status, output = verify(receipt, public_file, "--model", model)
    assert (status, output) == (1, "m is another model, or has changed since the receipt was made\n")


def test_another_tree_that_is_served_is_told(
    receipt: Path, public_file: Path, private_key: ec.EllipticCurvePrivateKey, model: Path
) -> None:
    """The model agrees as it came, but its agents left something else."""
    statement = json.loads(base64.b64decode(json.loads(receipt.read_text())["dsseEnvelope"]["payload"]))
    statement["subject"].append({"name": "m as it is served", "digest": {"sha256": "1" * 64}})
    receipt.write_text(json.dumps(sign(json.dumps(statement).encode(), private_key)))
    status, output = verify(receipt, public_file, "--model", model)
    assert (status, f"m as it is served: sha256:{'1' * 64}\n" in output) == (0, True)


def test_a_configuration_that_came_with_the_load_is_told(
    new_loader: NewLoader, model: Path, public_file: Path, receipts: Path
) -> None:
    """The files of the model agree, but another configuration, with other agents, was in force."""
    override = ModelConfig(name="m", backend="python", max_batch_size=8)
    new_loader().load(open_source("m", str(model)), override=override).attest([1])
    (receipt,) = receipts.glob("*.vsa.json")
    status, output = verify(receipt, public_file, "--model", model)
    assert (status, "configuration that is not the model's own\n" in output) == (0, True)


def test_a_summary_without_its_details_hides_no_configuration(
    new_loader: NewLoader, model: Path, public_file: Path, receipts: Path
) -> None:
    """Who hands over the summary alone must not make an overridden load look like any other."""
    override = ModelConfig(name="m", backend="python", max_batch_size=8)
    new_loader().load(open_source("m", str(model)), override=override).attest([1])
    (receipt,) = receipts.glob("*.vsa.json")
    (details,) = receipts.glob("*.load.json")
    details.unlink()
    status, output = verify(receipt, public_file, "--model", model)
    assert (status, "configuration that is not the model's own\n" in output) == (0, True)
    word = "REPOAGENT_OWN_CONFIGURATION"
    assert verify(receipt, public_file, "--level", word) == (1, f"the receipt does not state {word}\n")


def test_a_summary_states_that_the_configuration_was_the_models_own(receipt: Path, public_file: Path) -> None:
    receipt.with_name(receipt.name.replace(".vsa.", ".load.")).unlink()
    status, output = verify(receipt, public_file, "--level", "REPOAGENT_OWN_CONFIGURATION")
    assert (status, "not the model's own" in output) == (0, False)


@pytest.mark.parametrize("stated", [None, 1, "override_sha256", ["audit"]])
def test_details_of_another_form_are_refused(
    stated: Any, receipt: Path, public_file: Path, private_key: ec.EllipticCurvePrivateKey
) -> None:
    details = receipt.with_name(receipt.name.replace(".vsa.", ".load."))
    statement = json.loads(base64.b64decode(json.loads(details.read_text())["dsseEnvelope"]["payload"]))
    statement["predicate"]["load"] = stated
    text = json.dumps(statement).encode()
    details.write_text(json.dumps(sign(text, private_key)))
    summary = json.loads(base64.b64decode(json.loads(receipt.read_text())["dsseEnvelope"]["payload"]))
    summary["predicate"]["inputAttestations"][0]["digest"]["sha256"] = hashlib.sha256(text).hexdigest()
    receipt.write_text(json.dumps(sign(json.dumps(summary).encode(), private_key)))
    status, output = verify(receipt, public_file)
    assert (status, "not in a form that this version knows" in output) == (1, True)


def test_a_summary_of_another_program_is_refused(
    tmp_path: Path, public_file: Path, private_key: ec.EllipticCurvePrivateKey
) -> None:
    kind = "https://slsa.dev/verification_summary/v1"
    statement = {"predicateType": kind, "subject": [], "predicate": {"verificationResult": "PASSED", "policy": "p"}}
    (tmp_path / "r").write_text(json.dumps(sign(json.dumps(statement).encode(), private_key)))
    status, output = verify(tmp_path / "r", public_file)
    assert (status, "not in a form that this version knows" in output) == (1, True)


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


def test_the_name_and_the_age_that_it_should_have(receipt: Path, public_file: Path) -> None:
    assert verify(receipt, public_file, "--name", "m", "--max-age", "1h")[0] == 0
    assert verify(receipt, public_file, "--name", "n") == (1, "the receipt is about the model 'm'\n")
    assert verify(receipt, public_file, "--max-age", "soon")[0] == 2


@pytest.mark.parametrize("time", ["2020-01-01T00:00:00Z", "2999-01-01T00:00:00Z"])
def test_a_receipt_of_another_time_is_refused_where_its_age_counts(
    time: str, receipt: Path, public_file: Path, private_key: ec.EllipticCurvePrivateKey
) -> None:
    statement = json.loads(base64.b64decode(json.loads(receipt.read_text())["dsseEnvelope"]["payload"]))
    statement["predicate"]["timeVerified"] = time
    receipt.write_text(json.dumps(sign(json.dumps(statement).encode(), private_key)))
    assert verify(receipt, public_file)[0] == 0
    assert verify(receipt, public_file, "--max-age", "30d") == (1, f"the receipt is of {time}\n")


def test_a_server_is_asked_for_it_by_a_url(
    load: Load, public_file: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    chain = load()
    assert chain.attestation is not None
    with FileServer({"/v2/models/m/attestation": chain.attestation.document}) as server:
        url = f"{server.url}/v2/models/m/attestation"
        words = ["verify", url, "--public-key", str(public_file), "--model", str(model)]
        assert CliRunner().invoke(attest_group, words).exit_code == 0
        missing = CliRunner().invoke(attest_group, ["verify", f"{server.url}/x", "--public-key", str(public_file)])
    assert missing.exit_code == 2
    assert "cannot be read" in missing.output


def test_a_server_whose_answer_has_no_end_is_given_up(public_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is never silent for long, and never has more bytes than a receipt may have."""
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    stop, times = threading.Event(), count(0, 10)
    monkeypatch.setattr("repoagent.web.client.monotonic", lambda: next(times))

    def drip(request: Request) -> bool:
        request.send_response(200)
        request.end_headers()
        while not stop.wait(0.01):
            request.wfile.write(b" ")
        return True

    with FileServer({}) as server:
        server.handlers.append(drip)
        status, output = verify(f"{server.url}/r", public_file)
        stop.set()
    assert (status, "takes too long to answer" in output) == (2, True)


def test_a_server_whose_answer_is_too_large_or_leads_inside_is_given_up(
    public_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setattr("repoagent_attest.cli._LARGEST", 1000)

    def inside(request: Request) -> bool:
        request.answer(302, headers={"Location": f"{other.url}/r"})
        return True

    with FileServer({"/r": bytes(1001)}) as server, FileServer({}) as other:
        status, output = verify(f"{server.url}/r", public_file)
        assert (status, "more than 1000 bytes" in output) == (2, True)
        server.handlers.append(inside)
        assert verify(f"{server.url}/r", public_file)[0] == 2
        assert other.requests == []


@pytest.mark.parametrize("command", ["prepare", "run"])
def test_what_was_prepared_or_given_to_a_command_agrees_with_its_receipt(
    command: str, model: Path, key_file: Path, receipts: Path, public_file: Path, tmp_path: Path, warm: Warm
) -> None:
    digest = hashlib.sha256(b"code").hexdigest()
    entry = f'{{ name: "checksum" parameters {{ key: "SHA256:1/model.py" value: "{digest}" }} }}'
    (model / "config.pbtxt").write_text(f"model_repository_agents {{ agents [ {entry} ] }}\n")
    flags = ["--attest-key", f"file:{key_file}", "--attest-directory", str(receipts)]
    flags += [f"--{name}-directory={tmp_path / name}" for name in ("workspace", "cache")]
    words = [str(tmp_path / "out")] if command == "prepare" else ["--", "true"]
    done = warm.run([command, *flags, model, *words])
    assert done.returncode == 0, done.stderr
    (path,) = receipts.glob("*.vsa.json")
    assert verify(path, public_file, "--model", model)[0] == 0
    if command == "run":
        return
    assert verify(path, public_file, "--model", tmp_path / "out")[0] == 0
    (tmp_path / "out" / ".repoagent-prepared").write_bytes(b"x")
    status, output = verify(path, public_file, "--model", tmp_path / "out")
    assert (status, output) == (1, "new since the receipt was made: .repoagent-prepared\n")
