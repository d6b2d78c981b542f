"""License files: which are read, and every way in which one can be refused."""

import base64
import json
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from repoagent_license.license_file import PAYLOAD_TYPE, _signed_bytes, issue_license, read_license, read_public_key
from repoagent_license.terms import Terms

from repoagent.api import InvalidArgumentError

BEGIN = datetime(2027, 1, 1, tzinfo=UTC)
END = datetime(2028, 1, 1, tzinfo=UTC)


@pytest.fixture
def signed(private_key: Ed25519PrivateKey) -> bytes:
    return issue_license(private_key, Terms(("fraud-*", "credit"), BEGIN, END))


def changed(signed: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(signed), **fields}).encode()


def test_the_signed_bytes_are_those_of_the_dsse_specification() -> None:
    # The example of https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
    encoded = _signed_bytes("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_openssl_accepts_the_signature(signed: bytes, public_pem: bytes, tmp_path: Path) -> None:
    envelope = json.loads(signed)
    payload = base64.b64decode(envelope["payload"])
    (tmp_path / "message").write_bytes(
        b"DSSEv1 38 application/vnd.repoagent.license+json %d %s" % (len(payload), payload)
    )
    (tmp_path / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    (tmp_path / "key.pem").write_bytes(public_pem)
    command = "openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in message -sigfile signature"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)


def test_another_key_is_refused(signed: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="not signed with the trusted key"):
        read_license(signed, Ed25519PrivateKey.generate().public_key())


def test_every_changed_byte_of_the_payload_is_noticed(signed: bytes, private_key: Ed25519PrivateKey) -> None:
    payload = bytearray(base64.b64decode(json.loads(signed)["payload"]))
    for index in range(len(payload)):
        payload[index] ^= 1
        forged = changed(signed, payload=base64.b64encode(payload).decode())
        with pytest.raises(InvalidArgumentError, match="not signed"):
            read_license(forged, private_key.public_key())
        payload[index] ^= 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"payloadType": "application/json"}, "not a signed application/vnd"),
        ({"payload": 5}, "not a signed"),
        ({"payload": "!"}, "not a signed"),
        ({"signatures": None}, "not a signed"),
        ({"signatures": []}, "not signed"),
        ({"signatures": ["x", {}, {"sig": "!"}, {"sig": 7}]}, "not signed"),
    ],
)
def test_an_envelope_that_is_none_is_refused(
    signed: bytes, private_key: Ed25519PrivateKey, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        read_license(changed(signed, **fields), private_key.public_key())


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"not json"])
def test_a_file_that_is_no_json_object_is_refused(content: bytes, private_key: Ed25519PrivateKey) -> None:
    with pytest.raises(InvalidArgumentError, match="the license file is not a JSON object"):
        read_license(content, private_key.public_key())


def test_times_need_a_time_zone(private_key: Ed25519PrivateKey) -> None:
    signed = issue_license(private_key, Terms(("*",), BEGIN, END.replace(tzinfo=None)))
    with pytest.raises(InvalidArgumentError, match="'expires' in the license is not a time with a time zone"):
        read_license(signed, private_key.public_key())


def test_only_ed25519_keys_are_taken() -> None:
    other = generate_private_key(SECP256R1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for pem in (other, b"", b"-----BEGIN PUBLIC KEY-----\n"):
        with pytest.raises(InvalidArgumentError, match="not an Ed25519 key in PEM form"):
            read_public_key(pem)


def test_every_term_is_kept(private_key: Ed25519PrivateKey) -> None:
    terms = Terms(("m",), BEGIN, END, ("sha256:1", "sha256:2"), "sha256:3", "a customer")
    assert read_license(issue_license(private_key, terms), private_key.public_key()) == terms


@pytest.mark.parametrize(
    ("terms", "message"),
    [
        ({"seats": 3}, "conditions that this version does not know: seats"),
        ({"hosts": []}, "'hosts' in the license is not a list of texts"),
        ({"hosts": "sha256:1"}, "'hosts' in the license is not a list"),
        ({"digest": ""}, "'digest' in the license is not a text"),
        ({"models": []}, "'models' in the license is not a list"),
        ({"models": [1]}, "'models' in the license is not a list"),
        ({"expires": None}, "'expires' in the license is not a time"),
    ],
)
def test_terms_that_are_not_understood_are_never_ignored(
    signed: bytes, private_key: Ed25519PrivateKey, terms: dict[str, Any], message: str
) -> None:
    document = json.loads(base64.b64decode(json.loads(signed)["payload"])) | terms
    payload = json.dumps(document).encode()
    signature = base64.b64encode(private_key.sign(_signed_bytes(PAYLOAD_TYPE, payload))).decode()
    forged = changed(signed, payload=base64.b64encode(payload).decode(), signatures=[{"sig": signature}])
    with pytest.raises(InvalidArgumentError, match=message):
        read_license(forged, private_key.public_key())
