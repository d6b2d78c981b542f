"""A keyset that Tink wrapped with a KMS: the provider unwraps it, and the files open."""

import base64
import json
from pathlib import Path
from typing import Any

from repoagent_decrypt.files.positional import Workers
from repoagent_decrypt.formats import KEY_PARAMETERS, decrypt_file
from repoagent_decrypt.providers.awskms import fetch
from tink import aead, json_proto_keyset_format

from agents.decrypt.tests.providers.test_awskms import kms, server
from agents.decrypt.tests.tink.test_with_tink import Peer

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
