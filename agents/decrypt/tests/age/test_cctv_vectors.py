"""The C2SP/CCTV vectors: every file, decrypted whole and streamed, must end as it says and release what it says."""

import hashlib
import io
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from repoagent_decrypt.age.files import decrypt_file
from repoagent_decrypt.age.keys import parse_identities
from repoagent_decrypt.age.reader import AgeReader
from repoagent_decrypt.age.stanzas import Identity
from repoagent_decrypt.age.stanzas.scrypt import ScryptIdentity
from repoagent_decrypt.files.errors import (
    AgeError,
    ArmorError,
    HeaderError,
    HeaderMacError,
    NoMatchError,
    PayloadError,
)
from repoagent_decrypt.files.positional import Workers

VECTORS = Path(__file__).parent.parent / "vectors" / "age"
NAMES = sorted(path.name for path in VECTORS.iterdir())
OUTCOMES: dict[str, type[AgeError] | None] = {
    "success": None,
    "no match": NoMatchError,
    "HMAC failure": HeaderMacError,
    "header failure": HeaderError,
    "armor failure": ArmorError,
    "payload failure": PayloadError,
}


@dataclass(frozen=True, slots=True)
class Vector:
    expect: type[AgeError] | None
    payload: str | None
    identities: tuple[Identity, ...]
    armored: bool
    file: bytes

    @classmethod
    def read(cls, name: str) -> "Vector":
        head, _, file = (VECTORS / name).read_bytes().partition(b"\n\n")
        fields: dict[str, list[str]] = {}
        for line in head.decode().splitlines():
            key, _, value = line.partition(": ")
            fields.setdefault(key, []).append(value)
        assert fields.keys() <= {
            "expect", "payload", "identity", "passphrase", "armored", "file key", "comment", "compressed",
        }  # fmt: skip
        identities: list[Identity] = [ScryptIdentity(word.encode()) for word in fields.get("passphrase", [])]
        for text in fields.get("identity", []):
            identities += parse_identities(text.encode(), name).native
        return cls(
            expect=OUTCOMES[fields["expect"][0]],
            payload=fields.get("payload", [None])[0],
            identities=tuple(identities),
            armored=fields.get("armored") == ["yes"],
            file=zlib.decompress(file) if fields.get("compressed") == ["zlib"] else file,
        )


def read_streaming(vector: Vector, threads: int) -> tuple[bytes, AgeError | None]:
    released = bytearray()
    try:
        with AgeReader(io.BytesIO(vector.file), vector.identities, threads=threads, armored=vector.armored) as reader:
            while piece := reader.read(10_000):
                released += piece
    except AgeError as error:
        return bytes(released), error
    return bytes(released), None


def check(vector: Vector, released: bytes, error: AgeError | None) -> None:
    if vector.expect is None:
        assert error is None
    else:
        assert type(error) is vector.expect or isinstance(error, vector.expect)
    if vector.payload is not None:
        assert hashlib.sha256(released).hexdigest() == vector.payload
    else:
        assert not released


def test_there_are_143_vectors() -> None:
    assert len(NAMES) == 143


@pytest.mark.parametrize("name", NAMES)
def test_cctv_vector(name: str) -> None:
    vector = Vector.read(name)
    check(vector, *read_streaming(vector, threads=1))


@pytest.mark.parametrize("name", NAMES)
def test_cctv_vector_with_threads(name: str) -> None:
    vector = Vector.read(name)
    check(vector, *read_streaming(vector, threads=3))


@pytest.mark.parametrize("name", NAMES)
def test_cctv_vector_file_to_file(name: str, tmp_path: Path, crew: Callable[[int], Workers]) -> None:
    vector = Vector.read(name)
    source, target = tmp_path / "file.age", tmp_path / "file"
    source.write_bytes(vector.file)
    if vector.expect is None:
        decrypt_file(source, target, vector.identities, workers=crew(2))
        assert hashlib.sha256(target.read_bytes()).hexdigest() == vector.payload
        return
    # Whether a file is armored is found out here, so broken armor may read as a broken header.
    expected = (ArmorError, HeaderError) if vector.expect is ArmorError else vector.expect
    with pytest.raises(expected):
        decrypt_file(source, target, vector.identities, workers=crew(2))
    assert not target.exists()
