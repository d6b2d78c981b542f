"""Messages put together from pieces, and their compression against gzip and zlib."""

import gzip
import random
import zlib

import pytest
from repoagent_server.grpc.http2.messages import Assembly, MessageFault, compress, decompress
from repoagent_server.shared.reserve import Reserve

from .conftest import message

_RESERVE = Reserve(1 << 30)


@pytest.mark.parametrize("size", [1, 2, 5, 6, 100, 10_000])
def test_messages_from_pieces_of_any_size(size: int) -> None:
    bodies = [random.Random(n).randbytes(n * n) for n in range(20)]
    data = b"".join(message(body, index % 2) for index, body in enumerate(bodies))
    assembly = Assembly(-1)
    found = [one for at in range(0, len(data), size) for one in assembly.feed(data, at, min(at + size, len(data)))]
    assert [(bytes(body), packed) for body, packed in found] == [(b, bool(i % 2)) for i, b in enumerate(bodies)]
    assert assembly.held == 0


def test_a_message_takes_memory_as_its_bytes_come_not_as_it_claims() -> None:
    assembly = Assembly(-1)
    assert assembly.feed(b"\0\xff\xff\xff\xffabc", 0, 8) == []
    assert assembly.held == 3


def test_the_largest_message() -> None:
    assert Assembly(3).feed(message(b"abc"), 0, 8)
    with pytest.raises(MessageFault, match=r"SERVER: Received message larger than max \(4 vs. 3\)") as raised:
        Assembly(3).feed(message(b"abcd"), 0, 5)
    assert raised.value.status == 8


def test_a_flag_that_is_neither_0_nor_1() -> None:
    with pytest.raises(MessageFault, match="neither compressed nor not"):
        Assembly(3).feed(message(b"", 2), 0, 5)


@pytest.mark.parametrize("level", [1, 2, 3])
def test_compression_is_gzip(level: int) -> None:
    assert gzip.decompress(compress([b"ab" * 1000, b"", b"c"], level)) == b"ab" * 1000 + b"c"


def test_decompression_of_both_codings() -> None:
    body = random.Random(0).randbytes(1000) * 50
    assert bytes(decompress(gzip.compress(body), b"gzip", len(body), _RESERVE)) == body
    assert bytes(decompress(zlib.compress(body), b"deflate", -1, _RESERVE)) == body
    assert bytes(decompress(gzip.compress(b""), b"gzip", 0, _RESERVE)) == b""


def _bomb() -> bytes:
    """A GiB of zeros in gzip. What ends with a full flush can be repeated, which compresses a MiB instead of a GiB."""
    packer = zlib.compressobj(wbits=31)
    first, more = [packer.compress(bytes(1 << 20)) + packer.flush(zlib.Z_FULL_FLUSH) for _ in range(2)]
    return first + more * 1023 + packer.flush()


@pytest.mark.parametrize(
    ("data", "coding", "status"),
    [
        (gzip.compress(bytes(1001)), b"gzip", 8),
        (_bomb(), b"gzip", 8),
        (gzip.compress(b"abc")[:-1], b"gzip", 13),
        (gzip.compress(b"abc") + b"x", b"gzip", 13),
        (b"no gzip", b"gzip", 13),
        (b"", b"gzip", 13),
        (zlib.compress(b"abc"), b"gzip", 13),
        (b"abc", b"identity", 13),
    ],
    ids=["too large", "bomb", "cut", "more", "none", "empty", "another coding", "no coding"],
)
def test_what_cannot_be_decompressed(data: bytes, coding: bytes, status: int) -> None:
    with pytest.raises(MessageFault) as raised:
        decompress(data, coding, 1000, _RESERVE)
    assert raised.value.status == status
