"""The armor: round trips of the vectors' own text, and noise."""

import base64
import io
import re
import zlib
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_decrypt.age.armor import ArmorReader, ArmorWriter, looks_armored
from repoagent_decrypt.age.source import PeekReader
from repoagent_decrypt.files.errors import ArmorError

VECTORS = Path(__file__).parent.parent / "vectors" / "age"


def armor(data: bytes, step: int = 1 << 20) -> bytes:
    target = io.BytesIO()
    with ArmorWriter(target) as writer:
        for start in range(0, len(data), step):
            writer.write(data[start : start + step])
    return target.getvalue()


def dearmor(text: bytes) -> bytes:
    return ArmorReader(PeekReader(io.BytesIO(text))).read()


@given(st.binary(max_size=500), st.integers(1, 100))
def test_what_is_armored_comes_back_however_it_was_written(data: bytes, step: int) -> None:
    text = armor(data, step)
    assert dearmor(text) == data
    assert dearmor(text.replace(b"\n", b"\r\n")) == data
    assert dearmor(b" \n\t" + text + b"\n \n") == data
    lines = text.splitlines()[1:-1]
    assert b"".join(lines) == base64.b64encode(data)
    assert all(len(line) == 64 for line in lines[:-1])


def test_the_vectors_that_succeed_are_written_back_the_same() -> None:
    seen = 0
    for path in VECTORS.glob("armor_*"):
        head, _, text = path.read_bytes().partition(b"\n\n")
        if b"expect: success" in head:
            text = zlib.decompress(text) if b"compressed: zlib" in head else text
            assert armor(dearmor(text)).strip() == text.replace(b"\r\n", b"\n").strip()
            seen += 1
    assert seen >= 5


def test_small_reads_give_the_same_bytes() -> None:
    data = bytes(range(256)) * 3
    reader = ArmorReader(PeekReader(io.BytesIO(armor(data))))
    assert b"".join(iter(lambda: reader.read(7), b"")) == data


def test_an_interrupted_writer_leaves_no_end_line() -> None:
    target = io.BytesIO()

    def fail() -> None:
        with ArmorWriter(target) as writer:
            writer.write(b"x" * 100)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert b"-----END" not in target.getvalue()


@pytest.mark.parametrize(
    ("begin", "expected"), [(b"", True), (b" \r\n\t", True), (b"\n" * 1024, True), (b"\n" * 1100, False), (b"x", False)]
)
def test_armor_is_recognised_behind_a_little_white_space(begin: bytes, expected: bool) -> None:
    assert looks_armored(PeekReader(io.BytesIO(begin + armor(b"hello")))) is expected


def test_an_empty_stream_is_not_armored() -> None:
    assert not looks_armored(PeekReader(io.BytesIO(b"")))


@given(st.data())
def test_fuzz_mutated_armor_is_an_armor_error_or_the_same_bytes(data: st.DataObject) -> None:
    original = b"0123456789" * 20
    text = bytearray(armor(original))
    position = data.draw(st.integers(0, len(text) - 1))
    text[position : position + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    try:
        decoded = dearmor(bytes(text))
    except ArmorError:
        return
    # Whatever is accepted is a canonical spelling of what it decodes to: armor is not malleable.
    assert re.sub(rb"\r\n", b"\n", bytes(text)).strip() == armor(decoded).strip()


@given(st.binary(max_size=300))
def test_fuzz_noise_inside_the_armor_is_an_armor_error(noise: bytes) -> None:
    with suppress(ArmorError):
        dearmor(b"-----BEGIN AGE ENCRYPTED FILE-----\n" + noise + b"\n-----END AGE ENCRYPTED FILE-----\n")
