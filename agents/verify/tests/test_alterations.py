"""Bundles and statements with each member altered: all refused, each with its own message."""

import base64
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.manifest import Serialization, VerificationError
from repoagent_verify.signing import Identity, sign
from repoagent_verify.trust_roots import Trust
from repoagent_verify.verification import Coverage, verify

from repoagent.api.envelopes import pre_authentication_encoding

Document = dict[str, Any]
BUNDLES: dict[str, tuple[Callable[[Document], Any], str]] = {
    "media type": (lambda b: b.update(mediaType="application/json"), "mediaType 'application/json'"),
    "no material": (lambda b: b.pop("verificationMaterial"), "no member 'verificationMaterial'"),
    "no envelope": (lambda b: b.pop("dsseEnvelope"), "no member 'dsseEnvelope'"),
    "payload type": (lambda b: b["dsseEnvelope"].update(payloadType="text"), "payloadType 'text'"),
    "no signature": (lambda b: b["dsseEnvelope"].update(signatures=[]), "has 0 signatures"),
    "two signatures": (lambda b: b["dsseEnvelope"]["signatures"].append({}), "has 2 signatures"),
    "signature not base64": (lambda b: b["dsseEnvelope"]["signatures"][0].update(sig="?"), "not valid base64"),
    "payload not base64": (lambda b: b["dsseEnvelope"].update(payload="?"), "payload is not valid base64"),
    "another signature": (
        lambda b: b["dsseEnvelope"]["signatures"][0].update(sig="MAYCAQECAQE="),
        "does not fit the signed statement",
    ),
    "another key": (lambda b: b["verificationMaterial"]["publicKey"].update(hint="00"), "key 00, which is not trusted"),
    "no key": (lambda b: b["verificationMaterial"].pop("publicKey"), "it has none"),
    "two kinds": (
        lambda b: b["verificationMaterial"].update(certificate={"rawBytes": ""}),
        "it has publicKey, certificate",
    ),
    "keyless": (
        lambda b: b.update(verificationMaterial={"certificate": {"rawBytes": ""}, "tlogEntries": []}),
        "keyless",
    ),
}
_Predicate = Callable[[Document], Any]
STATEMENTS: dict[str, tuple[_Predicate, str]] = {
    "type": (lambda s: s.update(_type="x"), "is of type 'x'"),
    "predicate type": (lambda s: s.update(predicateType="x"), "predicateType 'x'"),
    "no subject": (lambda s: s.update(subject=[]), "has 0 subjects"),
    "no serialization": (lambda s: s["predicate"].pop("serialization"), "no member 'serialization'"),
    "no resources": (lambda s: s["predicate"].update(resources=[]), "another root digest"),
    "a method": (lambda s: s["predicate"]["serialization"].update(method="x"), "method 'x'"),
    "a hash": (lambda s: s["predicate"]["serialization"].update(hash_type="md5"), "hash_type 'md5'"),
    "links": (lambda s: s["predicate"]["serialization"].update(allow_symlinks="no"), "'allow_symlinks'"),
    "ignored": (lambda s: s["predicate"]["serialization"].update(ignore_paths=["."]), "ignores '.'"),
    "ignored glob": (lambda s: s["predicate"]["serialization"].update(ignore_paths=["*"]), "ignores '*'"),
    "an algorithm": (lambda s: s["predicate"]["resources"][0].update(algorithm="md5"), "algorithm 'md5'"),
    "a digest": (lambda s: s["predicate"]["resources"][0].update(digest="00"), "not sha256 in hexadecimal"),
    "a path up": (lambda s: s["predicate"]["resources"][0].update(name="../x"), "'../x' is not a plain"),
    "an absolute path": (lambda s: s["predicate"]["resources"][0].update(name="/x"), "'/x' is not a plain"),
    "twice": (lambda s: _twice(s), "names a file twice"),
    "order": (lambda s: s["predicate"]["resources"].reverse(), "another root digest"),
}


def _twice(statement: Document) -> None:
    resources = statement["predicate"]["resources"]
    resources[1] = {**resources[1], "name": resources[0]["name"]}


@pytest.fixture
def bundle(model: Path, key: ec.EllipticCurvePrivateKey) -> Document:
    document: Document = json.loads(sign(model, Identity(key), Serialization()))
    return document


@pytest.mark.parametrize(("alter", "text"), BUNDLES.values(), ids=BUNDLES)
def test_an_altered_bundle_is_refused(
    model: Path, key: ec.EllipticCurvePrivateKey, bundle: Document, alter: Callable[[Document], Any], text: str
) -> None:
    alter(bundle)
    with pytest.raises(VerificationError, match=text.replace("(", r"\(")):
        verify(model, json.dumps(bundle).encode(), Trust((key.public_key(),)), Coverage(""))


def refusal(model: Path, bundle: Document, payload: bytes, key: ec.EllipticCurvePrivateKey) -> str:
    """Why ``bundle`` is refused once the trusted signer has signed ``payload`` in it."""
    signature = key.sign(pre_authentication_encoding(payload), ec.ECDSA(hashes.SHA256()))
    bundle["dsseEnvelope"]["payload"] = base64.b64encode(payload).decode()
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(signature).decode()
    with pytest.raises(VerificationError) as caught:
        verify(model, json.dumps(bundle).encode(), Trust((key.public_key(),)), Coverage(""))
    return str(caught.value)


@pytest.mark.parametrize(("alter", "text"), STATEMENTS.values(), ids=STATEMENTS)
def test_a_signed_statement_that_makes_no_sense_is_refused(
    model: Path, key: ec.EllipticCurvePrivateKey, bundle: Document, alter: Callable[[Document], Any], text: str
) -> None:
    """The trusted signer's own key signed it, so only the reading of the statement can refuse."""
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    alter(statement)
    payload = json.dumps(statement).encode()
    assert text in refusal(model, bundle, payload, key)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[]", "not a JSON object"),
        (b"\xff", "not valid JSON"),
        (b'{"a": 1, "a": 2}', "occurs twice"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b"[" * 9_000, "nested too deeply"),
    ],
)
def test_what_is_not_a_bundle_is_refused(model: Path, key: ec.EllipticCurvePrivateKey, data: bytes, text: str) -> None:
    with pytest.raises(VerificationError, match=text):
        verify(model, data, Trust((key.public_key(),)), Coverage(""))


@pytest.mark.parametrize(
    ("size", "name", "text"),
    [
        ("1e999", "a:0:5", "shard_size inf, expected a positive integer"),
        ("1e300", "a:0:5", "shard_size 1e+300, expected a positive integer"),
        (str(1 << 62), f"a:{1 << 62}:{1 << 63}", "ends where no file does"),
        (str((1 << 63) - 1), f"a:0:{1 << 63}", "ends where no file does"),
    ],
)
def test_sizes_that_no_file_has_are_refused(
    size: str, name: str, text: str, model: Path, key: ec.EllipticCurvePrivateKey, bundle: Document
) -> None:
    """They were no error of verification, but one of the reading of a number."""
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    digest = bytes(32)
    statement["subject"][0]["digest"] = {"sha256": hashlib.sha256(digest).hexdigest()}
    statement["predicate"]["serialization"].update(method="shards", shard_size="SIZE")
    statement["predicate"]["resources"] = [{"name": name, "algorithm": "sha256", "digest": digest.hex()}]
    payload = json.dumps(statement).replace('"SIZE"', size).encode()
    assert text in refusal(model, bundle, payload, key)
