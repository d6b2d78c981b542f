"""Every truncation, bit flip, reordering, duplication and swap of an encrypted file is refused, by every reader."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repoagent_decrypt.age.files import decrypt_file
from repoagent_decrypt.age.reader import AgeReader, SeekableAgeReader
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import NONCE, SEALED
from repoagent_decrypt.files.errors import AgeError
from repoagent_decrypt.files.positional import Workers

Check = Callable[[bytes, bytes], None]


@pytest.fixture(scope="module")
def refused(
    identity: X25519Identity, tmp_path_factory: pytest.TempPathFactory, crew: Callable[[int], Workers]
) -> Check:
    """Asserts that all readers refuse a file, release nothing but a prefix, and leave no file."""
    directory, workers = tmp_path_factory.mktemp("damage"), crew(2)

    def collect(damaged: bytes, released: bytearray) -> None:
        with AgeReader(io.BytesIO(damaged), [identity], threads=1) as reader:
            for piece in reader.pieces():
                released += piece

    def check(damaged: bytes, plain: bytes) -> None:
        released = bytearray()
        with pytest.raises(AgeError):
            collect(damaged, released)
        assert plain.startswith(released)
        source, target = directory / "source.age", directory / "target"
        source.write_bytes(damaged)
        with pytest.raises(AgeError):
            decrypt_file(source, target, [identity], workers=workers)
        assert not target.exists()
        with pytest.raises(AgeError), SeekableAgeReader(io.BytesIO(damaged), [identity]) as seekable:
            seekable.readall()

    return check


def payload_start(sealed: bytes) -> int:
    return sealed.index(b"\n", sealed.index(b"\n--- ") + 1) + 1 + NONCE


def chunks_of(sealed: bytes) -> tuple[bytes, list[bytes]]:
    start = payload_start(sealed)
    return sealed[:start], [sealed[at : at + SEALED] for at in range(start, len(sealed), SEALED)]


@settings(max_examples=60)
@given(data=st.data())
def test_every_truncation_is_refused(data: st.DataObject, sealed: bytes, plain: bytes, refused: Check) -> None:
    start = payload_start(sealed)
    edges = [start + SEALED * number + step for number in range(4) for step in (-1, 0, 1, 16)]
    length = data.draw(st.integers(0, len(sealed) - 1) | st.sampled_from(edges))
    refused(sealed[:length], plain)


@settings(max_examples=60)
@given(data=st.data())
def test_every_bit_flip_is_refused(data: st.DataObject, sealed: bytes, plain: bytes, refused: Check) -> None:
    position = data.draw(st.integers(0, len(sealed) - 1))
    damaged = bytearray(sealed)
    damaged[position] ^= 1 << data.draw(st.integers(0, 7))
    refused(bytes(damaged), plain)


def test_each_single_bit_flip_of_a_small_file_is_refused(
    identity: X25519Identity, seal: Callable[[bytes], bytes]
) -> None:
    sealed = seal(b"weights")
    for position in range(len(sealed) * 8):
        damaged = bytearray(sealed)
        damaged[position // 8] ^= 1 << position % 8
        with pytest.raises(AgeError), AgeReader(io.BytesIO(bytes(damaged)), [identity], threads=1) as reader:
            reader.readall()


@settings(max_examples=40)
@given(data=st.data())
def test_every_swap_reordering_duplication_and_removal_of_chunks_is_refused(
    data: st.DataObject, sealed: bytes, plain: bytes, refused: Check
) -> None:
    head, chunks = chunks_of(sealed)
    order = data.draw(st.lists(st.integers(0, len(chunks) - 1), max_size=len(chunks) + 2))
    if order != list(range(len(chunks))):
        refused(head + b"".join(chunks[number] for number in order), plain)


@settings(max_examples=30)
@given(data=st.data())
def test_a_chunk_of_another_file_is_refused(
    data: st.DataObject, sealed: bytes, plain: bytes, seal: Callable[[bytes], bytes], refused: Check
) -> None:
    head, chunks = chunks_of(sealed)
    _, others = chunks_of(seal(plain))
    number = data.draw(st.integers(0, len(chunks) - 1))
    refused(head + b"".join([*chunks[:number], others[number], *chunks[number + 1 :]]), plain)


@given(tail=st.binary(min_size=1, max_size=100))
@settings(max_examples=30)
def test_anything_appended_is_refused(tail: bytes, sealed: bytes, plain: bytes, refused: Check) -> None:
    refused(sealed + tail, plain)


def test_the_header_of_another_file_for_the_same_key_is_refused(
    sealed: bytes, plain: bytes, seal: Callable[[bytes], bytes], refused: Check
) -> None:
    other = seal(plain)
    refused(other[: payload_start(other)] + sealed[payload_start(sealed) :], plain)


def test_the_message_tells_a_cut_file_from_an_extended_and_a_changed_one(
    sealed: bytes, identity: X25519Identity, tmp_path: Path
) -> None:
    head, chunks = chunks_of(sealed)
    changed = chunks[1][:-1] + bytes([chunks[1][-1] ^ 1])
    cases = {
        "the end is missing": head + b"".join(chunks[:-1]),
        "chunk 1 does not authenticate": head + b"".join([chunks[0], changed, *chunks[2:]]),
        "cut short or damaged": sealed[: len(head) + SEALED + 3],
    }
    for text, damaged in cases.items():
        (tmp_path / "x.age").write_bytes(damaged)
        with pytest.raises(AgeError, match=text):
            decrypt_file(tmp_path / "x.age", tmp_path / "x", [identity])
