"""Both ways with Tink's own library, at every size where a segment begins or ends."""

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest
import tink
from repoagent_decrypt.files.errors import DamagedError, WrongKeyError
from repoagent_decrypt.files.positional import Workers
from repoagent_decrypt.tink.files import TAG, decrypt_file, encrypt_file, header_size, plain_size
from repoagent_decrypt.tink.keyset import parse_keyset
from tink import json_proto_keyset_format, proto_keyset_format, secret_key_access, streaming_aead

streaming_aead.register()
TEMPLATES = streaming_aead.streaming_aead_key_templates
NAMES = ("AES128_GCM_HKDF_4KB", "AES256_GCM_HKDF_4KB", "AES128_GCM_HKDF_1MB", "AES256_GCM_HKDF_1MB")


class Peer:
    """A keyset of Tink, and files that Tink writes and reads with it."""

    def __init__(self, template: str) -> None:
        self.handle = tink.new_keyset_handle(getattr(TEMPLATES, template))
        self.json: bytes = json_proto_keyset_format.serialize(self.handle, secret_key_access.TOKEN).encode()
        self.binary: bytes = proto_keyset_format.serialize(self.handle, secret_key_access.TOKEN)
        self._primitive = self.handle.primitive(streaming_aead.StreamingAead)

    def encrypt(self, plain: bytes, path: Path) -> Path:
        with path.open("wb") as file, self._primitive.new_encrypting_stream(file, b"") as stream:
            stream.write(plain)
        return path

    def decrypt(self, path: Path) -> bytes:
        with path.open("rb") as file, self._primitive.new_decrypting_stream(file, b"") as stream:
            content: bytes = stream.read()
        return content


@pytest.fixture(scope="module")
def workers() -> Any:
    with Workers(2) as workers:
        yield workers


@pytest.fixture(scope="module")
def peer() -> Peer:
    return Peer("AES256_GCM_HKDF_4KB")


@pytest.mark.parametrize("template", NAMES)
def test_files_of_every_size_go_both_ways(template: str, tmp_path: Path, workers: Workers) -> None:
    peer = Peer(template)
    keys = parse_keyset(peer.json, "keyset")
    first = keys[0].segment_size - TAG - header_size(keys[0].derived_size)
    later = keys[0].segment_size - TAG
    for size in (0, 1, first - 1, first, first + 1, first + later, first + later + 1, 3 * later):
        plain, name = os.urandom(size), f"{size}"
        sealed = peer.encrypt(plain, tmp_path / f"{name}.theirs")
        assert plain_size(sealed, keys) == size
        decrypt_file(sealed, tmp_path / f"{name}.plain", keys, workers=workers)
        assert (tmp_path / f"{name}.plain").read_bytes() == plain
        encrypt_file(tmp_path / f"{name}.plain", tmp_path / f"{name}.ours", keys[0], workers=workers)
        assert (tmp_path / f"{name}.ours").stat().st_size == sealed.stat().st_size
        assert peer.decrypt(tmp_path / f"{name}.ours") == plain


def test_a_binary_keyset_is_the_same_as_one_in_json(peer: Peer) -> None:
    assert parse_keyset(peer.binary, "a") == parse_keyset(peer.json, "b")


def test_after_a_rotation_old_and_new_files_open(tmp_path: Path, workers: Workers) -> None:
    document = json.loads(Peer("AES256_GCM_HKDF_4KB").json)
    newer = json.loads(Peer("AES128_GCM_HKDF_4KB").json)
    both = {"primaryKeyId": newer["primaryKeyId"], "key": document["key"] + newer["key"]}
    keys = parse_keyset(json.dumps(both).encode(), "keyset")
    assert keys[0].key_id == newer["primaryKeyId"]
    for number, parts in enumerate((document, newer)):
        handle = json_proto_keyset_format.parse(json.dumps(parts), secret_key_access.TOKEN)
        buffer = io.BytesIO()
        buffer.close = lambda: None  # type: ignore[method-assign]
        with handle.primitive(streaming_aead.StreamingAead).new_encrypting_stream(buffer, b"") as stream:
            stream.write(b"content" * 1000)
        sealed = tmp_path / f"{number}.tink"
        sealed.write_bytes(buffer.getvalue())
        decrypt_file(sealed, tmp_path / f"{number}", keys, workers=workers)
        assert (tmp_path / f"{number}").read_bytes() == b"content" * 1000


@pytest.mark.parametrize("damage", ["flip", "cut", "cut a segment", "extend", "swap"])
def test_damage_anywhere_is_found_and_nothing_stays(damage: str, peer: Peer, tmp_path: Path, workers: Workers) -> None:
    keys = parse_keyset(peer.json, "keyset")
    sealed = peer.encrypt(os.urandom(5 * 4096), tmp_path / "x.tink")
    data = bytearray(sealed.read_bytes())
    match damage:
        case "flip":
            data[3 * 4096 + 5] ^= 1
        case "cut":
            del data[-1:]
        case "cut a segment":
            del data[4 * 4096 :]
        case "extend":
            data += data[-4096:]
        case "swap":
            data[4096:8192], data[8192:12288] = data[8192:12288], data[4096:8192]
    sealed.write_bytes(data)
    with pytest.raises(DamagedError):
        decrypt_file(sealed, tmp_path / "plain", keys, workers=workers)
    assert not (tmp_path / "plain").exists()


def test_another_keyset_does_not_open_it(peer: Peer, tmp_path: Path, workers: Workers) -> None:
    sealed = peer.encrypt(b"content", tmp_path / "x.tink")
    keys = parse_keyset(Peer("AES256_GCM_HKDF_4KB").json, "keyset")
    with pytest.raises(WrongKeyError, match="no key of the keyset"):
        decrypt_file(sealed, tmp_path / "plain", keys, workers=workers)
    assert not (tmp_path / "plain").exists()


def test_every_byte_of_a_small_file_counts(peer: Peer, tmp_path: Path, workers: Workers) -> None:
    keys = parse_keyset(peer.json, "keyset")
    data = peer.encrypt(b"content", tmp_path / "x.tink").read_bytes()
    for position in range(len(data)):
        changed = bytearray(data)
        changed[position] ^= 1
        (tmp_path / "changed").write_bytes(changed)
        with pytest.raises((DamagedError, WrongKeyError)):
            decrypt_file(tmp_path / "changed", tmp_path / "plain", keys, workers=workers)
