"""Sigstore's keyless signatures: those of the reference tool, and those of a whole Sigstore of the test."""

import base64
import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID
from repoagent_verify.manifest import Serialization, VerificationError
from repoagent_verify.signing import Identity, sign
from repoagent_verify.trust_roots import Trust, read_trust
from repoagent_verify.verification import Coverage, Verified, verify

from agents.verify.tests.private_sigstore import IDENTITY, ISSUER, PrivateSigstore, new_key, text
from repoagent.api import InvalidArgumentError

VECTORS = Path(__file__).parent / "vectors" / "keyless"
STEFAN = ("stefanb@us.ibm.com", "https://sigstore.verify.ibm.com/oauth2")
Document = dict[str, Any]


@pytest.fixture(scope="module")
def sigstore() -> PrivateSigstore:
    return PrivateSigstore()


def payload_of(model: Path) -> bytes:
    """The statement that the reference tool would have signed as well."""
    document = json.loads(sign(model, Identity(new_key()), Serialization()))
    return base64.b64decode(document["dsseEnvelope"]["payload"])


def check(
    model: Path,
    bundle: Document,
    root: bytes,
    identity: str | None = IDENTITY,
    issuer: str | None = ISSUER,
) -> Verified:
    return verify(
        model, json.dumps(bundle).encode(), Trust(sigstore=root, identity=identity, issuer=issuer), Coverage("")
    )


# -- what the reference tool signed at the public Sigstore -------------------------------------------------------------


@pytest.fixture
def signed_model(tmp_path: Path) -> Path:
    for name, content in (("signme-1", b"signme-1"), ("signme-2", b"signme-2")):
        (tmp_path / name).write_bytes(content)
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("release", ["0.3.1", "1.1.0"])
def test_what_the_reference_tool_signed_without_a_key_holds_years_later(release: str, signed_model: Path) -> None:
    root = (VECTORS / "trusted_root.json").read_bytes()
    bundle = json.loads((VECTORS / f"{release}.sig").read_text())
    verified = check(signed_model, bundle, root, *STEFAN)
    assert (verified.signer.method, verified.signer.name) == ("sigstore", f"{STEFAN[0]} (issuer {STEFAN[1]})")
    with pytest.raises(VerificationError, match=r"signed by 'stefanb@us\.ibm\.com', expected 'other@us\.ibm\.com'"):
        check(signed_model, bundle, root, "other@us.ibm.com", STEFAN[1])
    with pytest.raises(VerificationError, match="but with another issuer than 'https://accounts"):
        check(signed_model, bundle, root, STEFAN[0], "https://accounts.google.com")
    (signed_model / "signme-2").write_bytes(b"changed")
    with pytest.raises(VerificationError, match="changed after signing: signme-2"):
        check(signed_model, bundle, root, *STEFAN)


@pytest.mark.parametrize("place", [-1, -60, 120, 300])
def test_a_timestamp_that_was_changed_is_not_a_time(signed_model: Path, place: int) -> None:
    root = (VECTORS / "trusted_root.json").read_bytes()
    bundle = json.loads((VECTORS / "1.1.0.sig").read_text())
    del bundle["verificationMaterial"]["tlogEntries"][0]["inclusionPromise"]  # the log's own time
    assert check(signed_model, bundle, root, *STEFAN).files == 2
    (stamp,) = bundle["verificationMaterial"]["timestampVerificationData"]["rfc3161Timestamps"]
    changed = bytearray(base64.b64decode(stamp["signedTimestamp"]))
    changed[place] ^= 1
    stamp["signedTimestamp"] = text(bytes(changed))
    with pytest.raises(VerificationError, match=r"not enough sources of verified time|Invalid Timestamp"):
        check(signed_model, bundle, root, *STEFAN)


# -- a Sigstore of the test --------------------------------------------------------------------------------------------


def test_a_model_that_was_signed_in_ci_holds(model: Path, sigstore: PrivateSigstore) -> None:
    verified = check(model, sigstore.bundle(payload_of(model)), sigstore.trusted_root())
    assert verified.signer.name == f"{IDENTITY} (issuer {ISSUER})"
    assert (verified.files, len(verified.signer.trust_root)) == (3, 64)


def test_verification_asks_nobody(model: Path, sigstore: PrivateSigstore, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle, root = sigstore.bundle(payload_of(model)), sigstore.trusted_root()

    def refuse(*_: object) -> None:
        raise AssertionError("a connection was made")

    for name in ("connect", "connect_ex", "sendto"):
        monkeypatch.setattr(f"socket.socket.{name}", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    assert check(model, bundle, root).files == 3


@pytest.mark.parametrize(
    ("pattern", "holds"),
    [
        (f"{IDENTITY.partition('@')[0]}@refs/tags/*", True),
        (f"{IDENTITY.partition('@')[0]}@refs/tags/v1.*", True),
        (f"{IDENTITY}*", False),
        (f"{IDENTITY.partition('@')[0]}@refs/heads/*", False),
        (IDENTITY[:-1], False),
        (f"{IDENTITY}0", False),
    ],
)
def test_a_branch_or_tag_can_be_left_open(model: Path, sigstore: PrivateSigstore, pattern: str, holds: bool) -> None:
    bundle, root = sigstore.bundle(payload_of(model)), sigstore.trusted_root()
    if holds:
        assert check(model, bundle, root, pattern).files == 3
    else:
        with pytest.raises(VerificationError, match=r"signed by 'https://github\.com/acme/models/"):
            check(model, bundle, root, pattern)


def test_a_signature_of_anybody_is_refused(model: Path, sigstore: PrivateSigstore) -> None:
    root = sigstore.trusted_root()
    mail = x509.RFC822Name("anybody@example.org")
    with pytest.raises(VerificationError, match=r"signed by 'anybody@example\.org', expected 'https://github"):
        check(model, sigstore.bundle(payload_of(model), identity=mail), root)
    with pytest.raises(VerificationError, match="another issuer than"):
        check(model, sigstore.bundle(payload_of(model), issuer="https://accounts.google.com"), root)


@pytest.mark.parametrize(("identity", "issuer"), [(None, None), (IDENTITY, None), (None, ISSUER)])
def test_without_an_identity_nothing_is_trusted(
    model: Path, sigstore: PrivateSigstore, identity: str | None, issuer: str | None
) -> None:
    with pytest.raises(VerificationError, match="everyone can do: give 'identity' and 'issuer'"):
        check(model, sigstore.bundle(payload_of(model)), sigstore.trusted_root(), identity, issuer)


def test_without_a_root_nothing_is_trusted(model: Path, sigstore: PrivateSigstore) -> None:
    bundle = json.dumps(sigstore.bundle(payload_of(model))).encode()
    with pytest.raises(VerificationError, match="no Sigstore root is trusted here"):
        verify(model, bundle, Trust((new_key().public_key(),)), Coverage(""))


def alter(bundle: Document, change: Callable[[Document], None]) -> Document:
    copied = json.loads(json.dumps(bundle))
    change(copied["verificationMaterial"]["tlogEntries"][0])
    return dict(copied)


def _other_checkpoint(entry: Document) -> None:
    proof = entry["inclusionProof"]
    size = proof["treeSize"]
    proof["checkpoint"]["envelope"] = proof["checkpoint"]["envelope"].replace(f"\n{size}\n", f"\n{int(size) + 1}\n")


def _unsigned_checkpoint(entry: Document) -> None:
    checkpoint = entry["inclusionProof"]["checkpoint"]
    checkpoint["envelope"] = checkpoint["envelope"].partition("\n\n")[0] + "\n\nnothing\n"


def _other_proof(entry: Document) -> None:
    entry["inclusionProof"]["hashes"][0] = text(bytes(32))


def _short_proof(entry: Document) -> None:
    entry["inclusionProof"]["hashes"].pop()


def _other_root(entry: Document) -> None:
    entry["inclusionProof"]["rootHash"] = text(bytes(32))


def _other_time(entry: Document) -> None:
    entry["integratedTime"] = str(int(entry["integratedTime"]) + 1)


def _other_body(entry: Document) -> None:
    entry["canonicalizedBody"] = text(base64.b64decode(entry["canonicalizedBody"]).replace(b"dsse", b"essd"))


ALTERATIONS = {
    "a checkpoint of another size": (_other_checkpoint, "checkpoint: invalid signature"),
    "a checkpoint without signature": (_unsigned_checkpoint, "."),
    "another inclusion proof": (_other_proof, "[Ii]nclusion proof"),
    "a short inclusion proof": (_short_proof, "[Ii]nclusion proof"),
    "another root": (_other_root, "[Ii]nclusion proof"),
    "another time": (_other_time, "inclusion promise"),
    "another entry": (_other_body, "."),
    "no proof": (lambda entry: entry.pop("inclusionProof"), "inclusionProof Field required"),
    "no checkpoint": (lambda entry: entry["inclusionProof"].pop("checkpoint"), "checkpoint"),
}


@pytest.mark.parametrize("name", ALTERATIONS)
def test_an_altered_entry_of_the_log_is_refused(model: Path, sigstore: PrivateSigstore, name: str) -> None:
    change, message = ALTERATIONS[name]
    with pytest.raises(VerificationError, match=message):
        check(model, alter(sigstore.bundle(payload_of(model)), change), sigstore.trusted_root())


@pytest.mark.parametrize("name", [name for name in ALTERATIONS if name != "another time"])
def test_an_altered_entry_is_refused_where_a_timestamp_takes_the_place_of_the_logs_promise(
    signed_model: Path, name: str
) -> None:
    """The promise covers the entry as well; without it, the proof and the checkpoint are all there is."""
    change, message = ALTERATIONS[name]
    bundle = alter(json.loads((VECTORS / "1.1.0.sig").read_text()), lambda entry: entry.pop("inclusionPromise"))
    with pytest.raises(VerificationError, match=message):
        check(signed_model, alter(bundle, change), (VECTORS / "trusted_root.json").read_bytes(), *STEFAN)


def test_an_entry_of_another_signature_is_refused(model: Path, sigstore: PrivateSigstore) -> None:
    bundle, other = (sigstore.bundle(payload_of(model)) for _ in range(2))
    bundle["verificationMaterial"]["tlogEntries"] = other["verificationMaterial"]["tlogEntries"]
    with pytest.raises(VerificationError, match="log entry signatures do not match bundle"):
        check(model, bundle, sigstore.trusted_root())


def test_a_signature_without_an_entry_in_the_log_is_refused(model: Path, sigstore: PrivateSigstore) -> None:
    bundle = sigstore.bundle(payload_of(model))
    bundle["verificationMaterial"]["tlogEntries"] = []
    with pytest.raises(VerificationError, match="expected exactly one log entry"):
        check(model, bundle, sigstore.trusted_root())


def test_a_signature_without_a_time_is_refused(model: Path, sigstore: PrivateSigstore) -> None:
    with pytest.raises(VerificationError, match="must contain an inclusion promise or signed timestamp"):
        check(model, sigstore.bundle(payload_of(model), promise=False), sigstore.trusted_root())


@pytest.mark.parametrize("minutes", [-1, 11])
def test_a_certificate_that_was_not_valid_when_it_signed_is_refused(
    model: Path, sigstore: PrivateSigstore, minutes: int
) -> None:
    issued = datetime.now(UTC).replace(microsecond=0) - timedelta(days=400)
    good = sigstore.bundle(payload_of(model), issued=issued)
    assert check(model, good, sigstore.trusted_root()).files == 3
    late = sigstore.bundle(payload_of(model), issued=issued, integrated=issued + timedelta(minutes=minutes))
    with pytest.raises(VerificationError, match=r"failed to build chain|expired|not valid"):
        check(model, late, sigstore.trusted_root())


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ("log", "invalid log entry|signature"),
        ("certificate_log", "SCT"),
        ("authority_key", "chain"),
    ],
)
def test_parts_of_another_sigstore_are_refused(model: Path, part: str, message: str) -> None:
    sigstore = PrivateSigstore()
    root = sigstore.trusted_root()
    setattr(sigstore, part, new_key())
    with pytest.raises(VerificationError, match=message):
        check(model, sigstore.bundle(payload_of(model)), root)


def test_a_certificate_for_servers_is_refused(model: Path, sigstore: PrivateSigstore) -> None:
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
    with pytest.raises(VerificationError, match=r"code signing|chain"):
        check(model, sigstore.bundle(payload_of(model), usage=usage), sigstore.trusted_root())


@pytest.mark.parametrize("place", ["payload", "sig"])
def test_another_statement_or_signature_is_refused(model: Path, sigstore: PrivateSigstore, place: str) -> None:
    bundle = sigstore.bundle(payload_of(model))
    envelope = bundle["dsseEnvelope"]
    if place == "payload":
        envelope["payload"] = text(payload_of(model) + b" ")
    else:
        envelope["signatures"][0]["sig"] = text(b"0" * 70)
    with pytest.raises(VerificationError, match=r"keyless signature does not hold: .*[Ss]ignature"):
        check(model, bundle, sigstore.trusted_root())


def test_two_spellings_of_a_member_mean_the_statement_that_was_verified(model: Path, sigstore: PrivateSigstore) -> None:
    """The library reads JSON of protocol buffers, which has two names for each member; this project reads one."""
    bundle = sigstore.bundle(payload_of(model))
    forged = json.loads(json.dumps(bundle["dsseEnvelope"]))
    forged["payload"] = text(payload_of(model).replace(b"model.onnx", b"other.onnx"))
    for document in ({**bundle, "dsse_envelope": forged}, {"dsse_envelope": bundle["dsseEnvelope"], **bundle}):
        document["dsseEnvelope"], verified = forged, bundle["dsseEnvelope"]
        document["dsse_envelope"] = verified
        with pytest.raises(VerificationError, match="keyless signature"):
            check(model, document, sigstore.trusted_root())


@pytest.mark.parametrize(
    "rubbish",
    [
        {"tlogEntries": [{}]},
        {"tlogEntries": [{"logIndex": "-1"}]},
        {"tlogEntries": 5},
        {"timestampVerificationData": {"rfc3161Timestamps": [{"signedTimestamp": "AAAA"}]}},
        {"certificate": {"rawBytes": "AAAA"}},
        {"certificate": {"rawBytes": ""}},
    ],
)
def test_rubbish_is_refused_with_a_reason(model: Path, sigstore: PrivateSigstore, rubbish: Document) -> None:
    bundle = sigstore.bundle(payload_of(model))
    bundle["verificationMaterial"].update(rubbish)
    with pytest.raises(VerificationError, match=r"the keyless signature (does not hold|cannot be verified): "):
        check(model, bundle, sigstore.trusted_root())


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{}", "not a root of Sigstore"),
        (b'{"mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json"}', "not a root of Sigstore"),
        (b'{"mediaType": 5}', "not a root of Sigstore"),
        (b"{" * 100_000, "nested too deeply|not valid JSON"),
    ],
)
def test_a_file_that_is_not_a_root_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        read_trust([("trust root 'x'", content)])


def test_a_root_that_lacks_parts_is_refused(model: Path, sigstore: PrivateSigstore) -> None:
    bundle = sigstore.bundle(payload_of(model))
    parts: list[Document] = [{"tlogs": []}, {"ctlogs": []}, {"certificateAuthorities": []}, {"tlogs": [{"baseUrl": 5}]}]
    for other in parts:
        with pytest.raises(InvalidArgumentError):
            check(model, bundle, sigstore.trusted_root(**other))


def test_two_roots_are_refused(sigstore: PrivateSigstore) -> None:
    with pytest.raises(InvalidArgumentError, match=r"two roots of Sigstore .* one trusted_root\.json"):
        read_trust([("a", sigstore.trusted_root()), ("b", sigstore.trusted_root())])
