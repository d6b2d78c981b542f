"""Ranges as the text of the specification numbers them (section 6.3.2); the reference tool writes another form."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.bundle import Bundle, Method, write_bundle
from repoagent_verify.manifest import VerificationError
from repoagent_verify.trust_roots import Trust
from repoagent_verify.verification import Coverage, Verified, verify

from repoagent.api.envelopes import key_id, pre_authentication_encoding

SIZE = 256


def resources_of(model: Path) -> list[dict[str, str]]:
    found = []
    for path in sorted(model.rglob("*")):
        if path.is_file():
            content, name = path.read_bytes(), path.relative_to(model).as_posix()
            for number in range(max(1, -(-len(content) // SIZE))):
                digest = hashlib.sha256(content[number * SIZE : (number + 1) * SIZE]).hexdigest()
                found.append({"name": f"{name}:shard-{number}", "algorithm": "sha256", "digest": digest})
    return sorted(found, key=lambda item: item["name"])


def check(
    model: Path, key: ec.EllipticCurvePrivateKey, resources: list[dict[str, str]], method: str = f"file-shard-{SIZE}"
) -> Verified:
    root = hashlib.sha256(b"".join(bytes.fromhex(item["digest"]) for item in resources)).hexdigest()
    serialization: dict[str, Any] = {"method": method, "hash_type": "sha256", "allow_symlinks": False}
    payload = json.dumps(
        {
            "_type": "https://in-toto.io/Statement/v1",
            "subject": [{"name": "m", "digest": {"sha256": root}}],
            "predicateType": "https://model_signing/signature/v1.0",
            "predicate": {"serialization": serialization, "resources": resources},
        }
    ).encode()
    signature = key.sign(pre_authentication_encoding(payload), ec.ECDSA(hashes.SHA256()))
    bundle = write_bundle(Bundle(Method.KEY, payload, signature, key_hint=key_id(key.public_key())))
    return verify(model, bundle, Trust((key.public_key(),)), Coverage(""))


def test_a_model_in_numbered_ranges_holds(model: Path, key: ec.EllipticCurvePrivateKey) -> None:
    assert check(model, key, resources_of(model)).files == 3
    (model / "1" / "even").write_bytes(bytes(2 * SIZE))
    assert check(model, key, resources_of(model)).files == 4


@pytest.mark.parametrize("change", ["shorter", "longer", "much longer", "other", "missing", "added", "empty"])
def test_a_changed_file_is_refused(model: Path, key: ec.EllipticCurvePrivateKey, change: str) -> None:
    signed, file = resources_of(model), model / "1" / "model.onnx"
    content = file.read_bytes()
    match change:
        case "shorter":
            file.write_bytes(content[:-1])
        case "longer":
            file.write_bytes(content + b"x")
        case "much longer":
            file.write_bytes(content + bytes(3 * SIZE))
        case "other":
            file.write_bytes(b"X" + content[1:])
        case "missing":
            file.unlink()
        case "added":
            (model / "1" / "empty").write_bytes(b"")
        case "empty":
            file.write_bytes(b"")
    with pytest.raises(VerificationError):
        check(model, key, signed)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["a:shard-1"], "gaps or overlap"),
        (["a:shard-0", "a:shard-2"], "gaps or overlap"),
        (["a:shard-0", "a:shard-0"], "names a file twice"),
        (["a:shard-0", "a:shard-00"], "names a file twice"),
        (["a"], "does not end with ':shard-NUMBER'"),
        (["a:0:5"], "does not end with ':shard-NUMBER'"),
        (["a:shard--1"], "does not end with ':shard-NUMBER'"),
        (["../a:shard-0"], "not a plain relative path"),
    ],
)
def test_ranges_that_do_not_follow_each_other_are_refused(
    model: Path, key: ec.EllipticCurvePrivateKey, names: list[str], message: str
) -> None:
    (model / "a").write_bytes(bytes(3 * SIZE))
    digest = hashlib.sha256(bytes(SIZE)).hexdigest()
    resources = [{"name": name, "algorithm": "sha256", "digest": digest} for name in names]
    with pytest.raises(VerificationError, match=message):
        check(model, key, resources)


@pytest.mark.parametrize("method", ["file-shard-0", "file-shard-", "file-shard-1e3", "file-shard-9999999999999999999"])
def test_a_size_that_is_not_one_is_refused(model: Path, key: ec.EllipticCurvePrivateKey, method: str) -> None:
    with pytest.raises(VerificationError, match="expected 'files', 'shards' or 'file-shard-SIZE'"):
        check(model, key, resources_of(model), method)
