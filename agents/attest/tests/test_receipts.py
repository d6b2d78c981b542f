"""What a load leaves, read by others: securesystemslib, openssl, coreutils."""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from repoagent_decrypt.age.files import encrypt_file
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer._key import SSlibKey

from agents.attest.tests.conftest import Load, NewLoader
from repoagent.api.envelopes import key_id, read_private_key, sign
from repoagent.audit.log import AuditLog
from repoagent.errors import AgentError, InvalidArgumentError, RepoAgentError, UnavailableError
from repoagent.loader.policy.rules import Policy, read_policy
from repoagent.storage.repositories.sources import open_source

DIGEST = hashlib.sha256(b"code").hexdigest()


def only(receipts: Path, suffix: str) -> Path:
    (path,) = receipts.glob(f"*{suffix}")
    return path


def payload(path: Path) -> dict[str, Any]:
    envelope = json.loads(path.read_text())["dsseEnvelope"]
    found: dict[str, Any] = json.loads(base64.b64decode(envelope["payload"]))
    return found


def test_a_load_leaves_a_summary_and_details_that_belong_together(load: Load, receipts: Path) -> None:
    chain = load()
    summary, details = only(receipts, ".vsa.json"), only(receipts, ".load.json")
    statement = payload(summary)
    assert statement["predicateType"] == "https://slsa.dev/verification_summary/v1"
    assert statement["predicate"]["verificationResult"] == "PASSED"
    raw = base64.b64decode(json.loads(details.read_text())["dsseEnvelope"]["payload"])
    assert statement["predicate"]["inputAttestations"][0]["digest"]["sha256"] == hashlib.sha256(raw).hexdigest()
    told = json.loads(raw)["predicate"]
    assert told["trees"]["model"][0] == {"name": "1/model.py", "digest": {"sha256": DIGEST}}
    assert told["load"]["versions"] == [1]
    assert chain.attestation is not None
    assert chain.report.details["attestation"] == f"sha256:{chain.attestation.digest}"


def test_the_subject_is_what_coreutils_print(load: Load, receipts: Path, model: Path) -> None:
    (model / "odd\nname").write_bytes(b"x")
    (model / "ü").write_bytes(b"y")
    load()
    names = "find . -type f -print0 | sed -z 's,^./,,' | LC_ALL=C sort -z"
    command = f"{names} | xargs -0 sha256sum | sha256sum"
    printed = subprocess.run(command, shell=True, cwd=model, capture_output=True, check=True, text=True).stdout
    assert payload(only(receipts, ".vsa.json"))["subject"][0]["digest"]["sha256"] == printed.split()[0]


@pytest.mark.parametrize("suffix", [".vsa.json", ".load.json"])
def test_securesystemslib_accepts_it_and_refuses_it_changed(
    suffix: str, load: Load, receipts: Path, private_key: ec.EllipticCurvePrivateKey
) -> None:
    load()
    document = json.loads(only(receipts, suffix).read_text())["dsseEnvelope"]
    key = SSlibKey.from_crypto(private_key.public_key(), keyid=key_id(private_key.public_key()))
    assert list(Envelope.from_dict(json.loads(json.dumps(document))).verify([key], 1))
    raw = bytearray(base64.b64decode(document["payload"]))
    raw[len(raw) // 2] ^= 1
    document["payload"] = base64.b64encode(raw).decode()
    with pytest.raises(VerificationError):
        Envelope.from_dict(document).verify([key], 1)


@pytest.mark.skipif(not shutil.which("jq") or not shutil.which("openssl"), reason="jq or openssl is not installed")
def test_the_lines_of_the_readme_verify_it_without_this_program(
    load: Load, receipts: Path, public_file: Path, tmp_path: Path
) -> None:
    load()
    readme = (Path(__file__).parents[1] / "README.md").read_text()
    found = re.search(r"```sh[^\n]*\n(.*?)```", readme, re.DOTALL)
    assert found
    command = ["bash", "-c", found[1], "verify.sh", str(only(receipts, ".vsa.json")), str(public_file)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "Verified OK"
    changed = json.loads(only(receipts, ".vsa.json").read_text())
    changed["dsseEnvelope"]["payload"] = "e30="
    (tmp_path / "changed").write_text(json.dumps(changed))
    command[4] = str(tmp_path / "changed")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, check=False).returncode == 1


REFUSING = """
name: "m" backend: "python"
model_repository_agents { agents [ { name: "checksum" parameters { key: "SHA256:1/model.py" value: "%s" } } ] }
"""
CONFIDENTIAL = """
name: "m" backend: "python"
model_repository_agents { agents [
  { name: "decrypt" parameters { key: "identity" value: "file:%s" } },
  { name: "checksum" parameters { key: "SHA256:1/model.py" value: "%s" } }
] }
"""


@pytest.mark.parametrize("allowed", [False, True])
def test_digests_of_confidential_plaintext_are_stated_only_where_that_is_allowed(
    allowed: bool, new_loader: NewLoader, receipts: Path, model: Path, tmp_path: Path
) -> None:
    identity = X25519Identity.generate()
    (tmp_path / "identity").write_text(identity.export())
    (model / "1/model.py").rename(tmp_path / "plain")
    encrypt_file(tmp_path / "plain", model / "1/model.py.age", [identity.recipient])
    # Its own digest, which the model's owner wrote into the configuration, is not in the receipt either.
    (model / "config.pbtxt").write_text(CONFIDENTIAL % (tmp_path / "identity", DIGEST))
    chain = new_loader(plaintext=allowed).load(open_source("m", str(model)))
    chain.attest([1])
    stated = [base64.b64decode(json.loads(path.read_text())["dsseEnvelope"]["payload"]) for path in receipts.iterdir()]
    assert any(DIGEST.encode() in one for one in stated) is allowed
    assert not any(identity.export().encode() in one or str(tmp_path).encode() in one for one in stated)
    assert len(payload(only(receipts, ".vsa.json"))["subject"]) == (2 if allowed else 1)


def test_a_bill_of_materials_that_the_model_brings_is_listed_and_passed_on(
    new_loader: NewLoader, receipts: Path, model: Path, tmp_path: Path
) -> None:
    """Through an agent that writes every file again, in both trees."""
    identity = X25519Identity.generate()
    (tmp_path / "identity").write_text(identity.export())
    (model / "1/model.py").rename(tmp_path / "plain")
    encrypt_file(tmp_path / "plain", model / "1/model.py.age", [identity.recipient])
    (model / "config.pbtxt").write_text(CONFIDENTIAL % (tmp_path / "identity", DIGEST))
    bom = b'{"bomFormat":"CycloneDX","specVersion":"1.6","components":[]}'
    (model / "bom.cdx.json").write_bytes(bom)
    chain = new_loader(plaintext=True).load(open_source("m", str(model)))
    chain.attest([1])
    trees = payload(only(receipts, ".load.json"))["predicate"]["trees"]
    listed = {"name": "bom.cdx.json", "digest": {"sha256": hashlib.sha256(bom).hexdigest()}}
    assert listed in trees["model"]
    assert listed in trees["served"]
    assert chain.files.bytes("bom.cdx.json") == bom


def test_the_line_of_the_audit_log_has_its_digest(new_loader: NewLoader, model: Path, tmp_path: Path) -> None:
    log = AuditLog(tmp_path / "audit.log")
    chain = new_loader(audit=log).load(open_source("m", str(model)))
    chain.attest([1])
    log.close()
    assert chain.attestation is not None
    assert f'"attestation":"sha256:{chain.attestation.digest}"' in (tmp_path / "audit.log").read_text()


def test_a_refused_load_leaves_a_receipt_that_says_so(new_loader: NewLoader, receipts: Path, model: Path) -> None:
    (model / "config.pbtxt").write_text(REFUSING % ("0" * 64))
    with pytest.raises(AgentError):
        new_loader().load(open_source("m", str(model)))
    predicate = payload(only(receipts, ".vsa.json"))["predicate"]
    assert (predicate["verificationResult"], predicate["verifiedLevels"]) == ("FAILED", [])
    (agent,) = payload(only(receipts, ".load.json"))["predicate"]["agents"]
    assert (agent["agent"], agent["outcome"]) == ("checksum", "failed")


def test_a_load_that_is_cancelled_leaves_none(new_loader: NewLoader, receipts: Path, model: Path) -> None:
    with pytest.raises(RepoAgentError):
        new_loader().load(open_source("m", str(model)), cancelled=lambda: True)
    assert list(receipts.iterdir()) == []


def test_a_refusal_that_the_policy_only_warns_of_is_no_agent_that_passed(
    new_loader: NewLoader, receipts: Path, model: Path
) -> None:
    policy = (
        '[[rule]]\nmodels = ["*"]\nmode = "warn"\n'
        f'before = [ {{ agent = "checksum", parameters = {{ "SHA256:1/model.py" = "{"0" * 64}" }} }} ]\n'
    )
    chain = new_loader(policy=policy).load(open_source("m", str(model)))
    chain.attest([1])
    assert payload(only(receipts, ".vsa.json"))["predicate"]["verifiedLevels"] == ["REPOAGENT_OWN_CONFIGURATION"]


def test_the_policy_and_its_rule_are_named(new_loader: NewLoader, receipts: Path, model: Path) -> None:
    policy = (
        '[[rule]]\nmodels = ["m*"]\n'
        f'before = [ {{ agent = "checksum", parameters = {{ "SHA256:1/model.py" = "{DIGEST}" }} }} ]\n'
    )
    chain = new_loader(policy=policy).load(open_source("m", str(model)))
    chain.attest([1])
    predicate = payload(only(receipts, ".vsa.json"))["predicate"]
    assert predicate["policy"]["digest"]["sha256"] == hashlib.sha256(policy.encode()).hexdigest()
    words = ("AGENTS_PASSED", "OWN_CONFIGURATION", "POLICY_ENFORCED")
    assert predicate["verifiedLevels"] == [f"REPOAGENT_{word}" for word in words]
    details = payload(only(receipts, ".load.json"))["predicate"]
    assert details["load"]["policy"]["models"] == ["m*"]
    assert details["agents"][0]["origin"] == "policy"
    assert details["agents"][0]["code"]["distribution"] == "repoagent-checksum"


def test_what_changes_in_the_repository_after_the_first_look_changes_nothing_that_is_stated(
    new_loader: NewLoader, receipts: Path, model: Path
) -> None:
    chain = new_loader().load(open_source("m", str(model)))
    (model / "1/model.py").write_bytes(b"evil")
    chain.attest([1])
    assert payload(only(receipts, ".load.json"))["predicate"]["trees"]["model"][0]["digest"]["sha256"] == DIGEST
    assert chain.files.bytes("1/model.py") == b"code"


def test_a_receipt_that_is_required_and_cannot_be_written_refuses_the_model(
    load: Load, new_loader: NewLoader, receipts: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    loader = new_loader(required=True)
    chain = loader.load(open_source("m", str(model)))
    receipts.rmdir()
    with pytest.raises(UnavailableError, match="the receipt of this load cannot be made"):
        chain.attest([1])
    chain.fail(UnavailableError("no receipt"))


def test_a_receipt_that_is_not_required_is_missed_in_the_log_only(
    new_loader: NewLoader, receipts: Path, model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    chain = new_loader().load(open_source("m", str(model)))
    receipts.rmdir()
    chain.attest([1])
    assert "the receipt of this load cannot be made" in caplog.text
    assert chain.attestation is None


KEYS = [
    (ec.generate_private_key(ec.SECP256R1()), Encoding.DER, PrivateFormat.TraditionalOpenSSL),
    (ec.generate_private_key(ec.SECP384R1()), Encoding.PEM, PrivateFormat.PKCS8),
    (ed25519.Ed25519PrivateKey.generate(), Encoding.PEM, PrivateFormat.PKCS8),
    (ed25519.Ed25519PrivateKey.generate(), Encoding.DER, PrivateFormat.PKCS8),
]


@pytest.mark.parametrize(("key", "encoding", "form"), KEYS)
def test_keys_of_these_kinds_sign_what_securesystemslib_accepts(key: Any, encoding: Any, form: Any) -> None:
    data = key.private_bytes(encoding, form, NoEncryption())
    bundle = sign(b"{}", read_private_key(data))
    public = key.public_key()
    assert Envelope.from_dict(bundle["dsseEnvelope"]).verify([SSlibKey.from_crypto(public, keyid=key_id(public))], 1)


def test_a_p256_key_in_der_fits_into_a_tpm() -> None:
    key: Any
    key, encoding, form = KEYS[0]
    assert len(key.private_bytes(encoding, form, NoEncryption())) <= 128


@pytest.mark.parametrize("secret", [b"a secret that is no key", b"-----BEGIN EC PRIVATE KEY-----\nc2VjcmV0\n"])
def test_a_key_that_cannot_be_read_is_never_repeated(secret: bytes, new_loader: NewLoader, key_file: Path) -> None:
    key_file.write_bytes(secret)
    with pytest.raises(InvalidArgumentError, match="the signing key cannot be read") as raised:
        new_loader()
    assert "secret" not in str(raised.value)
    assert "c2Vj" not in str(raised.value)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a directory to another user")
def test_a_directory_of_another_user_is_refused(new_loader: NewLoader, receipts: Path) -> None:
    """Its owner could take receipts away, and put old ones in their place."""
    os.chown(receipts, 12345, 12345)
    with pytest.raises(InvalidArgumentError, match="belongs to user 12345"):
        new_loader()


def test_the_policy_that_is_named_is_the_one_that_was_read(
    new_loader: NewLoader, receipts: Path, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who replaces the file while the server starts has a rule in force, or a digest, but not one of each."""
    policy = '[[rule]]\nmodels = ["*"]\n'

    def read_and_replace(path: Path) -> Policy:
        found = read_policy(path)
        path.write_text("# stricter\n")
        return found

    monkeypatch.setattr("repoagent.loader.assembly.read_policy", read_and_replace)
    new_loader(policy=policy).load(open_source("m", str(model))).attest([1])
    stated = payload(only(receipts, ".vsa.json"))["predicate"]["policy"]["digest"]["sha256"]
    assert stated == hashlib.sha256(policy.encode()).hexdigest()


@pytest.mark.skipif("SIGSTORE_JS" not in os.environ, reason="make bench-peers installs the npm package")
def test_the_npm_package_of_sigstore_accepts_it_and_refuses_it_changed(
    load: Load, receipts: Path, public_file: Path
) -> None:
    def verdict(path: Path) -> str:
        script = Path(__file__).with_name("verify.js")
        words = ["node", str(script), str(path), str(public_file)]
        environment = {**os.environ, "NODE_PATH": os.environ["SIGSTORE_JS"]}
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout.strip()

    load()
    for path in [only(receipts, ".vsa.json"), only(receipts, ".load.json")]:
        assert verdict(path) == "ok"
        bundle = json.loads(path.read_text())
        data = bytearray(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
        data[-5] ^= 1
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(data).decode()
        path.write_text(json.dumps(bundle))
        assert verdict(path) == "SIGNATURE_ERROR"


def test_a_receipt_names_the_last_line_of_the_audit_log(
    new_loader: NewLoader, receipts: Path, model: Path, tmp_path: Path
) -> None:
    with closing(AuditLog(tmp_path / "audit.log")) as log:
        chain = new_loader(audit=log).load(open_source("m", str(model)))
        before = log.head
        chain.attest([1])
        told = payload(only(receipts, ".load.json"))["predicate"]["load"]["audit"]
        assert told == {"seq": before.seq, "hash": before.hash}
        assert log.head.seq == before.seq + 1
