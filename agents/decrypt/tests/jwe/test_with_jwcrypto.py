"""Files that jwcrypto encrypted, with every algorithm that is supported, and damaged ones."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from jwcrypto import jwe, jwk
from jwcrypto.common import base64url_encode
from repoagent_decrypt.files.errors import DamagedError, DecryptError, KeyFormatError, WrongKeyError
from repoagent_decrypt.jwe import envelope
from repoagent_decrypt.jwe.files import decrypt_file, plain_size
from repoagent_decrypt.jwe.keys import parse_keys

AES = {size: jwk.JWK.generate(kty="oct", size=size, kid=f"aes{size}") for size in (128, 192, 256)}
RSA = jwk.JWK.generate(kty="RSA", size=2048, kid="rsa")
CASES = [
    (AES[128], "dir", "A128GCM"),
    (AES[192], "dir", "A192GCM"),
    (AES[256], "dir", "A256GCM"),
    (AES[128], "A128KW", "A256GCM"),
    (AES[192], "A192KW", "A256GCM"),
    (AES[256], "A256KW", "A128GCM"),
    (RSA, "RSA-OAEP", "A256GCM"),
    (RSA, "RSA-OAEP-256", "A256GCM"),
]
Encrypt = Callable[..., Path]


@pytest.fixture
def encrypt(tmp_path: Path) -> Encrypt:
    def run(key: jwk.JWK, plain: bytes, **members: str) -> Path:
        token = jwe.JWE(plain, json.dumps(members))
        token.add_recipient(key)
        path = tmp_path / "file.jwe"
        path.write_text(token.serialize(compact=True))
        return path

    return run


@pytest.mark.parametrize(("key", "alg", "enc"), CASES)
@pytest.mark.parametrize("size", [0, 1, 2, 3, 1000])
def test_every_algorithm_opens(key: jwk.JWK, alg: str, enc: str, size: int, encrypt: Encrypt, tmp_path: Path) -> None:
    plain = os.urandom(size)
    path = encrypt(key, plain, alg=alg, enc=enc)
    assert plain_size(path) == size
    sizes = decrypt_file(path, tmp_path / "plain", parse_keys(key.export().encode(), "key"))
    assert (tmp_path / "plain").read_bytes() == plain
    assert (sizes.read, sizes.written) == (path.stat().st_size, size)


def test_a_file_of_several_pieces_opens_and_reports_progress(encrypt: Encrypt, tmp_path: Path) -> None:
    plain = os.urandom(7_000_001)
    seen: list[int] = []
    path = encrypt(AES[256], plain, alg="dir", enc="A256GCM")
    decrypt_file(path, tmp_path / "plain", parse_keys(AES[256].export().encode(), "key"), seen.append)
    assert (tmp_path / "plain").read_bytes() == plain
    assert seen == [3 << 20, 6 << 20, 7_000_001]


def test_raw_keys_pem_and_sets_of_keys_are_read(encrypt: Encrypt, tmp_path: Path) -> None:
    raw = parse_keys(jwk.base64url_decode(AES[256].export(as_dict=True)["k"]), "key")
    pem = parse_keys(RSA.export_to_pem(private_key=True, password=None), "key")
    both = parse_keys(json.dumps({"keys": [json.loads(key.export()) for key in (RSA, AES[256])]}).encode(), "key")
    for number, (key, alg, ours) in enumerate(
        [(AES[256], "dir", raw), (RSA, "RSA-OAEP", pem), (AES[256], "A256KW", both), (RSA, "RSA-OAEP", both)]
    ):
        path = encrypt(key, b"content", alg=alg, enc="A256GCM", kid=key.export(as_dict=True)["kid"])
        decrypt_file(path, tmp_path / f"{number}", ours)
        assert (tmp_path / f"{number}").read_bytes() == b"content"


def test_every_character_counts(encrypt: Encrypt, tmp_path: Path) -> None:
    path = encrypt(AES[256], b"content", alg="A256KW", enc="A256GCM")
    keys, text = parse_keys(AES[256].export().encode(), "key"), path.read_bytes()
    for position in range(len(text)):
        changed = bytearray(text)
        changed[position] = ord("A") if changed[position] != ord("A") else ord("B")
        path.write_bytes(changed)
        with pytest.raises(DecryptError):
            decrypt_file(path, tmp_path / "plain", keys)
        assert not (tmp_path / "plain").exists()


@pytest.mark.parametrize("text", [b"", b"ey", b"eyJh.b.c", b"eyJhbGciOiJkaXIifQ....", b"a.b.c.d.e", b"." * 1_000_000])
def test_what_is_not_jwe_is_refused(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "x.jwe").write_bytes(text)
    with pytest.raises(DamagedError):
        plain_size(tmp_path / "x.jwe")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"alg": "dir", "enc": "A256CBC-HS512"}, "encrypted with 'A256CBC-HS512'"),
        ({"alg": "dir", "enc": "A256GCM", "zip": "DEF"}, "has 'zip'"),
    ],
)
def test_what_is_not_supported_is_named(
    members: dict[str, str], message: str, encrypt: Encrypt, tmp_path: Path
) -> None:
    key = jwk.JWK.generate(kty="oct", size=512) if "CBC" in members["enc"] else AES[256]
    with pytest.raises(DamagedError, match=message):
        plain_size(encrypt(key, b"content", **members))


def test_another_way_to_wrap_keys_is_named(encrypt: Encrypt, tmp_path: Path) -> None:
    path = encrypt(AES[256], b"content", alg="A256GCMKW", enc="A256GCM")
    with pytest.raises(DamagedError, match="wrapped with 'A256GCMKW', expected one of dir"):
        decrypt_file(path, tmp_path / "plain", parse_keys(AES[256].export().encode(), "key"))


@pytest.mark.parametrize("member", ["alg", "enc"])
def test_a_name_of_many_kilobytes_is_not_repeated(member: str, tmp_path: Path) -> None:
    document = {"alg": "dir", "enc": "A256GCM"} | {member: "x" * 40_000}
    text = f"{base64url_encode(json.dumps(document))}..{'A' * 16}..{'A' * 22}"
    (tmp_path / "x.jwe").write_text(text)
    with pytest.raises(DamagedError) as caught:
        decrypt_file(tmp_path / "x.jwe", tmp_path / "plain", parse_keys(AES[256].export().encode(), "key"))
    assert "xxx" in str(caught.value)
    assert len(str(caught.value)) < 300


def test_another_key_is_refused(encrypt: Encrypt, tmp_path: Path) -> None:
    path = encrypt(AES[256], b"content", alg="A256KW", enc="A256GCM")
    other = parse_keys(jwk.JWK.generate(kty="oct", size=256).export().encode(), "key")
    with pytest.raises(WrongKeyError, match="A256KW"):
        decrypt_file(path, tmp_path / "plain", other)


def test_a_file_above_the_limit_is_refused_before_it_is_read(encrypt: Encrypt, monkeypatch: pytest.MonkeyPatch) -> None:
    path = encrypt(AES[256], bytes(1001), alg="dir", enc="A256GCM")
    monkeypatch.setattr(envelope, "LARGEST", 1000)
    with pytest.raises(DamagedError, match="1001 bytes of plaintext, at most 1000 are accepted: use age or Tink"):
        plain_size(path)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"text", "not a key for JWE"),
        (b"-----BEGIN x", "not a private key in PEM"),
        (b'{"kty":"EC"}', "a key of type 'EC'"),
        (b'{"kty":"oct","k":"AAAA"}', "an AES key of 3 bytes"),
        (b'{"kty":"oct","k":"!!"}', "not base64url"),
        (b'{"kty":"RSA","n":"AQ"}', "not a JWK"),
        (b'{"keys":[1]}', "not a JWK"),
        (b'{"a":' + b"[" * 100_000, "not a JWK"),
    ],
)
def test_what_is_not_a_key_is_refused(data: bytes, message: str) -> None:
    with pytest.raises(KeyFormatError, match=message):
        parse_keys(data, "jwe_key 1")
