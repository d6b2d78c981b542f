"""Random access: the same bytes as the whole, and only what was looked at is decrypted."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repoagent_decrypt.age.primitives.errors import PayloadError
from repoagent_decrypt.age.seekable import SeekableAgeReader
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import CHUNK
from repoagent_decrypt.age.writer import encrypt_stream


@settings(max_examples=40)
@given(moves=st.lists(st.tuples(st.integers(0, 4 * CHUNK), st.integers(0, 2 * CHUNK)), min_size=1, max_size=6))
def test_any_slice_is_the_same_as_of_the_whole(
    moves: list[tuple[int, int]], sealed: bytes, plain: bytes, identity: X25519Identity
) -> None:
    with io.BufferedReader(SeekableAgeReader(io.BytesIO(sealed), [identity])) as reader:
        for offset, size in moves:
            reader.seek(offset)
            assert reader.read(size) == plain[offset : offset + size]


def test_seeking_counts_from_the_start_the_position_and_the_end(
    sealed: bytes, plain: bytes, identity: X25519Identity
) -> None:
    with SeekableAgeReader(io.BytesIO(sealed), [identity]) as reader:
        assert reader.size == len(plain)
        assert reader.seekable()
        assert reader.seek(-4, io.SEEK_END) == len(plain) - 4
        assert reader.read() == plain[-4:]
        assert reader.seek(-2, io.SEEK_CUR) == reader.tell() == len(plain) - 2
        assert reader.seek(10**9) == 10**9
        assert reader.read(5) == b""
        with pytest.raises(ValueError, match="cannot seek"):
            reader.seek(-1)


def test_damage_is_found_when_its_chunk_is_read(sealed: bytes, plain: bytes, identity: X25519Identity) -> None:
    damaged = bytearray(sealed)
    damaged[-CHUNK] ^= 1  # in the last but one chunk
    with SeekableAgeReader(io.BytesIO(bytes(damaged)), [identity]) as reader:
        assert reader.read(100) == plain[:100]
        reader.seek(2 * CHUNK)
        with pytest.raises(PayloadError):
            reader.read(1)


def test_an_empty_file_has_size_0(identity: X25519Identity) -> None:
    target = io.BytesIO()
    encrypt_stream(io.BytesIO(), target, [identity.recipient])
    with SeekableAgeReader(target, [identity]) as reader:
        assert (reader.size, reader.read()) == (0, b"")


def test_armored_files_and_pipes_are_refused(identity: X25519Identity) -> None:
    target = io.BytesIO()
    encrypt_stream(io.BytesIO(b"x"), target, [identity.recipient], armored=True)
    with pytest.raises(io.UnsupportedOperation, match="armored"):
        SeekableAgeReader(target, [identity])

    class Pipe(io.BytesIO):
        def seekable(self) -> bool:
            return False

    with pytest.raises(io.UnsupportedOperation, match="seek"):
        SeekableAgeReader(Pipe(target.getvalue()), [identity])
