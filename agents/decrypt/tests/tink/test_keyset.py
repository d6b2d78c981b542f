"""Keysets that cannot be used are refused with a reason, and never repeated."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from repoagent_decrypt.files.errors import KeyFormatError
from repoagent_decrypt.files.positional import Workers
from repoagent_decrypt.formats import KEY_PARAMETERS, decrypt_file
from repoagent_decrypt.providers.awskms import fetch
from repoagent_decrypt.tink.keyset import STREAMING_KEY, keyset_message, parse_keyset, streaming_key_message
from tink import aead, json_proto_keyset_format

from agents.decrypt.tests.providers.test_awskms import kms, server
from agents.decrypt.tests.tink.test_with_tink import Peer

SECRET = b"0123456789abcdef0123456789abcdef"


def keyset(*, type_url: str = STREAMING_KEY, status: str = "ENABLED", **changes: Any) -> bytes:
    key = streaming_key_message()
    key.version = changes.get("version", 0)
    key.params.segment_size = changes.get("segment_size", 4096)
    key.params.derived_size = changes.get("derived_size", 32)
    key.params.hash = changes.get("hash", 3)
    key.key_value = changes.get("secret", SECRET)
    data = {"typeUrl": type_url, "value": base64.b64encode(key.SerializeToString()).decode()}
    entry = {"keyData": data, "status": status, "keyId": 7, "outputPrefixType": "RAW"}
    return json.dumps({"primaryKeyId": 7, "key": [entry]}).encode()


def test_a_keyset_has_its_key() -> None:
    (key,) = parse_keyset(keyset(), "x")
    assert (key.key_id, key.segment_size, key.derived_size, key.hash_name) == (7, 4096, 32, "SHA256")
    assert "0123" not in repr(key)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (keyset(status="DISABLED"), "no enabled key of type AesGcmHkdfStreamingKey"),
        (keyset(type_url="type.googleapis.com/google.crypto.tink.AesGcmKey"), "no enabled key"),
        (keyset(version=1), "version 1"),
        (keyset(derived_size=24), "derived keys of 24 bytes"),
        (keyset(secret=b"short"), "expected 16 or 32 and a longer key"),
        (keyset(hash=2), "the hash is SHA384"),
        (keyset(segment_size=56), "segments of 56 bytes"),
        (keyset(segment_size=1 << 30), "segments of 1073741824 bytes"),
        (b'{"encryptedKeyset": "AAAA"}', "the keyset is encrypted; give the KMS"),
        (b'{"primaryKeyId": 1}', "not a Tink keyset in JSON"),
        (b'{"primaryKeyId": 1e999, "key": []}', "not a Tink keyset in JSON"),
        (b'{"primaryKeyId": 1, "key": [{"keyId": Infinity}]}', "not a Tink keyset in JSON"),
        (b"[" * 100_000, "not a Tink keyset"),
        (b'{"primaryKeyId":' + b"[" * 100_000, "not a Tink keyset in JSON"),
        (b"\xff\xff", "not a Tink keyset"),
        (keyset_message().SerializeToString(), "no enabled key"),
    ],
)
def test_what_cannot_be_used_is_refused_by_its_reason(data: bytes, message: str) -> None:
    with pytest.raises(KeyFormatError, match=message) as caught:
        parse_keyset(data, "keyset 1")
    assert str(caught.value).startswith("keyset 1")
    assert "0123456789" not in str(caught.value)


# A keyset that Tink wrapped with a KMS: the provider unwraps it, and the files open.

__all__ = ["kms", "server"]


class OfTheKms(aead.Aead):  # type: ignore[misc]  # Tink has no types
    """What Tink's own packages for clouds do: encryption by the service."""

    def __init__(self, client: Any) -> None:
        self._client = client
        self._key = client.create_key()["KeyMetadata"]["KeyId"]

    def encrypt(self, plaintext: bytes, associated_data: bytes) -> bytes:
        assert associated_data == b""
        sealed: bytes = self._client.encrypt(KeyId=self._key, Plaintext=plaintext)["CiphertextBlob"]
        return sealed

    def decrypt(self, ciphertext: bytes, associated_data: bytes) -> bytes:
        assert associated_data == b""
        plain: bytes = self._client.decrypt(CiphertextBlob=ciphertext)["Plaintext"]
        return plain


def test_a_keyset_that_a_kms_wrapped_opens_files(kms: Any, tmp_path: Path) -> None:
    peer = Peer("AES256_GCM_HKDF_1MB")
    sealed = peer.encrypt(b"weights" * 500_000, tmp_path / "w.tink")
    wrapped = json.loads(json_proto_keyset_format.serialize_encrypted(peer.handle, OfTheKms(kms), b""))
    text = base64.b64encode(base64.b64decode(wrapped["encryptedKeyset"])).decode()
    keys = KEY_PARAMETERS["keyset"](fetch(f"awskms:?ciphertext={text}"), "the keyset")
    with Workers() as workers:
        decrypt_file(sealed, tmp_path / "w", keys, workers=workers, progress=lambda _done: None)
    assert (tmp_path / "w").read_bytes() == b"weights" * 500_000
