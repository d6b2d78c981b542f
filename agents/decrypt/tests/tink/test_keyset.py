"""Keysets that cannot be used are refused with a reason, and never repeated."""

import base64
import json
from typing import Any

import pytest
from repoagent_decrypt.files.errors import KeyFormatError
from repoagent_decrypt.tink.keyset import STREAMING_KEY, keyset_message, parse_keyset, streaming_key_message

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
