"""The streaming reader: order, bounds, repeated errors, and agreement with the plain single-threaded way."""

import io
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repoagent_decrypt.age.reader import AgeReader, SeekableAgeReader, decrypt_stream
from repoagent_decrypt.age.source import PeekReader
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import BATCH_CHUNKS, CHUNK
from repoagent_decrypt.age.writer import encrypt_stream
from repoagent_decrypt.files.errors import NoMatchError, PayloadError

BATCH = BATCH_CHUNKS * CHUNK
SIZES = [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, BATCH - 1, BATCH, BATCH + 1, 3 * BATCH, 4 * BATCH + CHUNK + 5]


@pytest.mark.slow
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("threads", [1, 2, 5])
@pytest.mark.parametrize("armored", [False, True])
def test_what_is_encrypted_decrypts_with_any_number_of_threads(
    size: int, threads: int, armored: bool, identity: X25519Identity
) -> None:
    plain = os.urandom(size)
    sealed, opened = io.BytesIO(), io.BytesIO()
    assert encrypt_stream(io.BytesIO(plain), sealed, [identity.recipient], threads=threads, armored=armored) == size
    assert decrypt_stream(io.BytesIO(sealed.getvalue()), opened, [identity], threads=threads) == size
    assert opened.getvalue() == plain


@settings(max_examples=20)
@given(steps=st.lists(st.integers(1, 100_000), min_size=1, max_size=8))
def test_reads_of_any_size_give_the_same_bytes(
    steps: list[int], sealed: bytes, plain: bytes, identity: X25519Identity
) -> None:
    got = bytearray()
    with AgeReader(io.BytesIO(sealed), [identity], threads=2) as reader:
        for step in steps:
            got += reader.read(step) or b""
        got += reader.readall()
    assert bytes(got) == plain


class Dribble(io.RawIOBase):
    """A stream that gives at most 1000 bytes at a time, as sockets do."""

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self._data = io.BytesIO(data)

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1, /) -> bytes:
        return self._data.read(min(size, 1000) if size >= 0 else 1000)


def test_a_source_with_short_reads_is_read_to_its_end(sealed: bytes, plain: bytes, identity: X25519Identity) -> None:
    with AgeReader(Dribble(sealed), [identity], threads=2) as reader:
        assert reader.readall() == plain


def test_damage_is_reported_again_on_every_further_read(sealed: bytes, plain: bytes, identity: X25519Identity) -> None:
    damaged = bytearray(sealed)
    damaged[-1] ^= 1
    with AgeReader(io.BytesIO(bytes(damaged)), [identity]) as reader:
        assert reader.read(3 * CHUNK) == plain[: 3 * CHUNK]
        for _ in range(3):
            with pytest.raises(PayloadError):
                reader.read(10)


def test_closing_early_ends_the_threads_and_leaves_the_source_open(sealed: bytes, identity: X25519Identity) -> None:
    source = io.BytesIO(sealed)
    before = set(threading.enumerate())
    reader = AgeReader(source, [identity], threads=4)
    assert reader.read(10)
    reader.close()
    reader.close()
    assert not source.closed
    assert not [thread for thread in set(threading.enumerate()) - before if thread.name.startswith("age-reader")]
    with pytest.raises(ValueError, match="closed"):
        reader.read(1)


def test_no_thread_starts_for_the_wrong_key(sealed: bytes) -> None:
    with pytest.raises(NoMatchError):
        AgeReader(io.BytesIO(sealed), [X25519Identity.generate()])


def test_only_a_bounded_part_of_the_source_is_read_ahead(identity: X25519Identity) -> None:
    sealed = io.BytesIO()
    encrypt_stream(io.BytesIO(bytes(12 * BATCH)), sealed, [identity.recipient])
    sealed.seek(0)
    with AgeReader(sealed, [identity], threads=2) as reader:
        assert reader.read(1)
        assert sealed.tell() < 6 * BATCH


def test_the_lookahead_buffer_reads_lines_blocks_and_the_rest() -> None:
    source = PeekReader(Dribble(b"one\ntwo\n" + b"x" * 3000 + b"\nend"))
    assert source.peek(6) == b"one\ntw"
    assert source.readline() == b"one\n"
    assert source.readline(2) == b"tw"
    assert source.readline() == b"o\n"
    assert source.read(5) == b"xxxxx"
    assert len(source.readline()) == 2996
    assert source.read() == b"end"
    assert source.readline() == b""


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
