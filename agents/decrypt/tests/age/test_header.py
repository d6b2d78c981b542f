"""The header: re-encoding what the vectors hold, limits, and noise."""

import io
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_decrypt.age import header
from repoagent_decrypt.age.header import MAX_HEADER_BYTES, make_header, open_header, read_header, write_stanza
from repoagent_decrypt.age.primitives.encoding import b64encode
from repoagent_decrypt.age.source import PeekReader
from repoagent_decrypt.age.stanzas import FileKey, Stanza
from repoagent_decrypt.age.stanzas.scrypt import ScryptRecipient
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.files.errors import HeaderError, HeaderMacError, NoMatchError

VECTORS = Path(__file__).parent.parent / "vectors" / "age"


def parse(data: bytes) -> tuple[int, list[Stanza]]:
    header = read_header(PeekReader(io.BytesIO(data)))
    return header.size, list(header.stanzas)


@cache
def vector_files() -> list[bytes]:
    found = []
    for path in sorted(VECTORS.iterdir()):
        head, _, file = path.read_bytes().partition(b"\n\n")
        if b"armored: yes" not in head and b"expect: header failure" not in head:
            found.append(zlib.decompress(file) if b"compressed: zlib" in head else file)
    return found


def test_every_header_of_the_vectors_is_written_back_byte_for_byte() -> None:
    files = vector_files()
    assert len(files) > 40
    for file in files:
        size, stanzas = parse(file)
        body = b"".join(map(write_stanza, stanzas))
        assert file[:size].startswith(b"age-encryption.org/v1\n" + body + b"--- ")


def test_a_header_opens_for_each_of_its_recipients_and_for_nobody_else() -> None:
    people = [X25519Identity.generate() for _ in range(5)]
    key = FileKey.generate()
    header = read_header(PeekReader(io.BytesIO(make_header(key, [person.recipient for person in people]))))
    for person in people:
        assert open_header(header, [X25519Identity.generate(), person]).secret == key.secret
    with pytest.raises(NoMatchError, match="5 x X25519"):
        open_header(header, [X25519Identity.generate()])


def test_a_stanza_of_another_kind_is_skipped(identity: X25519Identity) -> None:
    class Strange:
        def wrap(self, key: FileKey) -> list[Stanza]:
            return [Stanza(("example.com/strange", "a", "b"), b"x" * 100)]

    key = FileKey.generate()
    data = make_header(key, [Strange(), identity.recipient])
    assert open_header(read_header(PeekReader(io.BytesIO(data))), [identity]).secret == key.secret


@pytest.mark.slow
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=6))
def test_stanza_bodies_of_any_length_survive(bodies: list[bytes]) -> None:
    stanzas = [Stanza(("test", str(number)), body) for number, body in enumerate(bodies)]
    data = b"age-encryption.org/v1\n" + b"".join(map(write_stanza, stanzas)) + b"--- " + b64encode(bytes(32)) + b"\n"
    assert parse(data + b"payload") == (len(data), stanzas)


def test_a_changed_stanza_is_noticed_even_when_the_key_still_unwraps(identity: X25519Identity) -> None:
    data = make_header(FileKey.generate(), [identity.recipient])
    grafted = data.replace(b"-> X25519", b"-> extra 1\n\n-> X25519", 1)
    with pytest.raises(HeaderMacError):
        open_header(read_header(PeekReader(io.BytesIO(grafted))), [identity])


def test_a_passphrase_must_be_the_only_recipient(identity: X25519Identity) -> None:
    with pytest.raises(HeaderError, match="only recipient"):
        make_header(FileKey.generate(), [ScryptRecipient(b"x", work_factor=1), identity.recipient])
    with pytest.raises(HeaderError, match="at least one"):
        make_header(FileKey.generate(), [])


@pytest.mark.parametrize("stanza", [b"-> a\n\n", b"-> a\n" + b"A" * 64 + b"\n\n"], ids=["small", "larger"])
def test_an_endless_header_is_given_up_on(monkeypatch: pytest.MonkeyPatch, stanza: bytes) -> None:
    monkeypatch.setattr(header, "MAX_HEADER_BYTES", 1 << 16)
    endless = b"age-encryption.org/v1\n" + stanza * ((1 << 16) // len(stanza) + 10)
    with pytest.raises(HeaderError, match="too long"):
        parse(endless)


def test_an_endless_line_and_an_endless_stanza_are_given_up_on() -> None:
    line = b"A" * 64 + b"\n"
    with pytest.raises(HeaderError, match="too long"):
        parse(b"age-encryption.org/v1\n-> a\n" + line * (MAX_HEADER_BYTES // len(line) + 10))
    with pytest.raises(HeaderError, match="too long"):
        parse(b"x" * (MAX_HEADER_BYTES + 10))


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "ends before the version line"),
        (b"PK\x03\x04 a zip file\n", "not an age file"),
        (b"age-encryption.org/v2\n", "version other than v1"),
        (b"age-encryption.org/v1\n--- AAAA\n", "no recipient stanza"),
        (b"age-encryption.org/v1\nhello\n", "line 2 of the header"),
    ],
)
def test_the_message_says_what_is_wrong(data: bytes, text: str) -> None:
    with pytest.raises(HeaderError, match=text):
        parse(data)


@given(st.binary(max_size=400))
def test_fuzz_noise_after_the_version_line_is_a_header_error_or_a_header(noise: bytes) -> None:
    with suppress(HeaderError):
        parse(b"age-encryption.org/v1\n" + noise)


@pytest.mark.slow
@given(st.data())
def test_fuzz_mutated_real_headers_are_a_header_error_or_a_header(data: st.DataObject) -> None:
    file = bytearray(data.draw(st.sampled_from([file for file in vector_files() if len(file) < 1000]))[:600])
    for _ in range(data.draw(st.integers(1, 4))):
        position = data.draw(st.integers(0, len(file) - 1))
        file[position : position + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
        if not file:
            break
    with suppress(HeaderError):
        parse(bytes(file))
