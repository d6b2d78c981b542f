"""Licences: what is accepted, and every way in which one can be refused."""

import base64
import json
import subprocess
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from repoagent_authorize.licence import _signed_bytes, check_licence, issue_licence, read_public_key

from repoagent.api import InvalidArgumentError

BEGIN = datetime(2027, 1, 1, tzinfo=UTC)
END = datetime(2028, 1, 1, tzinfo=UTC)
DURING = datetime(2027, 6, 1, tzinfo=UTC)


@pytest.fixture
def licence(private_key: Ed25519PrivateKey) -> bytes:
    return issue_licence(private_key, ["fraud-*", "credit"], not_before=BEGIN, expires=END)


def changed(licence: bytes, **fields: Any) -> bytes:
    return json.dumps({**json.loads(licence), **fields}).encode()


@pytest.mark.parametrize("model", ["fraud-eu", "credit"])
def test_a_licence_holds_for_the_models_it_names(licence: bytes, private_key: Ed25519PrivateKey, model: str) -> None:
    grant = check_licence(licence, private_key.public_key(), model, DURING)
    assert grant.until == END


def test_the_signed_bytes_are_those_of_the_dsse_specification() -> None:
    # The example of https://github.com/secure-systems-lab/dsse/blob/master/protocol.md
    encoded = _signed_bytes("http://example.com/HelloWorld", b"hello world")
    assert encoded == b"DSSEv1 29 http://example.com/HelloWorld 11 hello world"


def test_openssl_accepts_the_signature(licence: bytes, public_pem: bytes, tmp_path: Path) -> None:
    envelope = json.loads(licence)
    payload = base64.b64decode(envelope["payload"])
    (tmp_path / "message").write_bytes(
        b"DSSEv1 38 application/vnd.repoagent.licence+json %d %s" % (len(payload), payload)
    )
    (tmp_path / "signature").write_bytes(base64.b64decode(envelope["signatures"][0]["sig"]))
    (tmp_path / "key.pem").write_bytes(public_pem)
    command = "openssl pkeyutl -verify -pubin -inkey key.pem -rawin -in message -sigfile signature"
    subprocess.run(command.split(), cwd=tmp_path, check=True, capture_output=True)


@pytest.mark.parametrize("model", ["fraud", "Credit", "other"])
def test_other_models_are_refused(licence: bytes, private_key: Ed25519PrivateKey, model: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"the licence is not for the model '{model}'"):
        check_licence(licence, private_key.public_key(), model, DURING)


def test_a_licence_that_has_not_begun_is_refused(licence: bytes, private_key: Ed25519PrivateKey) -> None:
    with pytest.raises(InvalidArgumentError, match="the licence begins only at 2027-01-01"):
        check_licence(licence, private_key.public_key(), "credit", BEGIN - timedelta(seconds=1))


def test_a_licence_that_has_ended_is_refused(licence: bytes, private_key: Ed25519PrivateKey) -> None:
    with pytest.raises(InvalidArgumentError, match="the licence ended at 2028-01-01"):
        check_licence(licence, private_key.public_key(), "credit", END).check(END)


def test_another_key_is_refused(licence: bytes) -> None:
    with pytest.raises(InvalidArgumentError, match="not signed with the operator's key"):
        check_licence(licence, Ed25519PrivateKey.generate().public_key(), "credit", DURING)


def test_every_changed_byte_of_the_payload_is_noticed(licence: bytes, private_key: Ed25519PrivateKey) -> None:
    payload = bytearray(base64.b64decode(json.loads(licence)["payload"]))
    for index in range(len(payload)):
        payload[index] ^= 1
        forged = changed(licence, payload=base64.b64encode(payload).decode())
        with pytest.raises(InvalidArgumentError, match="not signed"):
            check_licence(forged, private_key.public_key(), "credit", DURING)
        payload[index] ^= 1


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"payloadType": "application/json"}, "no signed application/vnd"),
        ({"payload": 5}, "no signed"),
        ({"payload": "!"}, "no signed"),
        ({"signatures": None}, "no signed"),
        ({"signatures": []}, "not signed"),
        ({"signatures": ["x", {}, {"sig": "!"}, {"sig": 7}]}, "not signed"),
    ],
)
def test_an_envelope_that_is_none_is_refused(
    licence: bytes, private_key: Ed25519PrivateKey, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=message):
        check_licence(changed(licence, **fields), private_key.public_key(), "credit", DURING)


@pytest.mark.parametrize("content", [b"", b"[]", b"\xff", b"not json"])
def test_a_file_that_is_no_json_object_is_refused(content: bytes, private_key: Ed25519PrivateKey) -> None:
    with pytest.raises(InvalidArgumentError, match="the licence file is no JSON object"):
        check_licence(content, private_key.public_key(), "credit", DURING)


def test_times_need_a_time_zone(private_key: Ed25519PrivateKey) -> None:
    licence = issue_licence(private_key, ["*"], not_before=BEGIN, expires=END.replace(tzinfo=None))
    with pytest.raises(InvalidArgumentError, match="'expires' in the licence is no time with a time zone"):
        check_licence(licence, private_key.public_key(), "credit", DURING)


def test_only_ed25519_keys_are_taken() -> None:
    other = generate_private_key(SECP256R1()).public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    for pem in (other, b"", b"-----BEGIN PUBLIC KEY-----\n"):
        with pytest.raises(InvalidArgumentError, match="no Ed25519 key in PEM form"):
            read_public_key(pem)
