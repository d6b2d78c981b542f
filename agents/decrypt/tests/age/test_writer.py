"""The writer: chunks held back, aborts, and fresh keys each time."""

import io

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from repoagent_decrypt.age.primitives.errors import AgeError
from repoagent_decrypt.age.reader import AgeReader
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.stream import CHUNK, plain_shape, sealed_shape
from repoagent_decrypt.age.writer import AgeWriter


@settings(max_examples=25)
@given(sizes=st.lists(st.integers(0, 3 * CHUNK), max_size=6))
def test_pieces_of_any_size_make_one_valid_file(sizes: list[int], identity: X25519Identity) -> None:
    target = io.BytesIO()
    with AgeWriter(target, [identity.recipient], threads=2) as writer:
        for number, size in enumerate(sizes):
            assert writer.write(bytes([number]) * size) == size
    with AgeReader(io.BytesIO(target.getvalue()), [identity]) as reader:
        assert reader.readall() == b"".join(bytes([number]) * size for number, size in enumerate(sizes))


def test_an_exception_leaves_a_file_that_nobody_accepts(identity: X25519Identity) -> None:
    target = io.BytesIO()

    def fail() -> None:
        with AgeWriter(target, [identity.recipient]) as writer:
            writer.write(bytes(40 * CHUNK))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    with pytest.raises(AgeError), AgeReader(io.BytesIO(target.getvalue()), [identity]) as reader:
        reader.readall()


def test_the_same_plaintext_never_gives_the_same_file(identity: X25519Identity) -> None:
    files = set()
    for _ in range(3):
        target = io.BytesIO()
        with AgeWriter(target, [identity.recipient]) as writer:
            writer.write(b"same")
        files.add(target.getvalue())
    assert len({file[-20:] for file in files}) == 3


@given(st.integers(0, 1 << 45))
def test_sizes_can_be_computed_both_ways(size: int) -> None:
    shape = plain_shape(size)
    assert sealed_shape(shape.sealed) == shape
    assert shape.plain == size
