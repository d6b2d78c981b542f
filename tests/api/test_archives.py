"""Zip archives of others: what is bounded, and that each bound is reached."""

import io
import random
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from repoagent.api import Archive, InvalidArgumentError, RepoAgentError, UnsupportedError
from tests.extent import in_full

MOST = 1 << 20


def packed(members: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return buffer.getvalue()


def opened(data: bytes, most_bytes: int = MOST) -> Archive:
    return Archive(io.BytesIO(data), most_bytes)


def lying(method: int, content: bytes, claimed: bytes, checksum: int) -> bytes:
    """A member ``a`` that claims the size of something else."""
    data = bytearray(packed({"a": content}, method))
    for head, place in ((0, 14), (data.rindex(b"PK\1\2"), 16)):
        struct.pack_into("<I", data, head + place, checksum)
        struct.pack_into("<I", data, head + place + 8, len(claimed))
    return bytes(data)


def listed(count: int) -> bytes:
    """A list of ``count`` entries of the least size, which say nothing of each other."""
    table = (b"PK\1\2" + bytes(42)) * count
    wide = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count, count, len(table), 0)
    found = b"PK\6\7" + struct.pack("<IQI", 0, len(table), 1)
    return table + wide + found + b"PK\5\6" + struct.pack("<4H2IH", 0, 0, *[0xFFFF] * 2, *[0xFFFFFFFF] * 2, 0)


@contextmanager
def little_memory(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_members_are_read_as_they_were_written(method: int) -> None:
    members = {"a": b"", "x/b": bytes(3 << 20), "c": random.Random(1).randbytes(3 << 20)}
    archive = opened(packed(members, method), 6 << 20)
    assert archive.names == [*members]
    assert {name: archive.read(name) for name in archive.names} == members
    archive.check()


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize(
    ("data", "error", "words"),
    [
        (lambda: b"PK\3\4 and nothing else", InvalidArgumentError, "is not a zip archive, or is damaged"),
        (lambda: packed({"a": b"x"})[:-5], InvalidArgumentError, "is not a zip archive, or is damaged"),
        (lambda: packed({"a": b"x"}, zipfile.ZIP_BZIP2), UnsupportedError, "neither stored nor deflated"),
        (lambda: packed({"a": b"x"}, zipfile.ZIP_LZMA), UnsupportedError, "neither stored nor deflated"),
        (lambda: packed({"a": bytes(MOST), "b": b"x"}), UnsupportedError, "unpacks to more than 1048576 bytes"),
        (lambda: packed({str(one): b"" for one in range(10_001)}), UnsupportedError, "has more than 10000 members"),
        (lambda: packed({"/a": b""}), InvalidArgumentError, "the member '/a' is an absolute path"),
        (lambda: packed({"x/../../a": b""}), InvalidArgumentError, "the member 'x/../../a' contains '..'"),
        (lambda: packed({"a\\b": b""}), InvalidArgumentError, "has a name that others read in another way"),
        (lambda: packed({"ab": b""}).replace(b"ab", b"a\0"), InvalidArgumentError, "read in another way"),
        (lambda: packed({"a": b"1", "b": b"2"}).replace(b"b", b"a"), InvalidArgumentError, "two members with one name"),
        (lambda: packed({"a": b"1", "a/": b"2"}), InvalidArgumentError, "two members with one name"),
    ],
)  # fmt: skip
def test_a_list_is_refused_before_anything_is_unpacked(
    data: Callable[[], bytes], error: type[RepoAgentError], words: str
) -> None:
    with pytest.raises(error, match=words):
        opened(data())


def test_members_that_share_their_bytes_are_refused() -> None:
    data = packed({"a": bytes(300)}, zipfile.ZIP_STORED)
    start, end = data.rindex(b"PK\1\2"), data.rindex(b"PK\5\6")
    one = data[start:end]
    sizes = struct.pack("<4H2IH", 0, 0, 2, 2, 2 * len(one), start, 0)
    with pytest.raises(InvalidArgumentError, match="has members that share their bytes"):
        opened(data[:start] + one + one[:-1] + b"b" + b"PK\5\6" + sizes)


@pytest.mark.parametrize(
    ("count", "words"), [(1_000_000, "a list of members of more than 8388608"), (100_000, "more than 10000 members")]
)
def test_a_long_list_is_refused_before_it_is_taken_apart(count: int, words: str) -> None:
    data = listed(count)
    with little_memory(10 << 20), pytest.raises(UnsupportedError, match=words):
        Archive(io.BytesIO(data), MOST)


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize(("real", "claimed"), [(50 << 20, 3), (3, 1000), (0, 1), (2, 1)])
def test_a_member_of_another_size_than_it_claims_takes_little_memory(method: int, real: int, claimed: int) -> None:
    for checksum in (zlib.crc32(bytes(real)), zlib.crc32(bytes(claimed))):
        archive = opened(lying(method, bytes(real), bytes(claimed), checksum))
        with little_memory(5 << 20), pytest.raises(InvalidArgumentError, match=r"has another size|is damaged"):
            archive.read("a")
        with little_memory(5 << 20), pytest.raises(InvalidArgumentError, match=r"has another size|is damaged"):
            archive.check()


def test_a_member_that_is_not_there_is_an_error() -> None:
    with pytest.raises(InvalidArgumentError, match="has no member 'b'"):
        opened(packed({"a": b"x"})).read("b")


def test_damaged_archives_raise_no_error_of_python() -> None:
    source = random.Random(28)
    whole = packed({"x/a": bytes(range(256)) * 5, "b": b"text" * 50})
    for _ in range(in_full(10_000, otherwise=300)):
        data = bytearray(whole)
        for _ in range(source.randint(1, 4)):
            place = source.randrange(len(data))
            data[place : place + source.randint(0, 6)] = source.randbytes(source.randint(0, 6))
        try:
            opened(bytes(data)).check()
        except RepoAgentError:
            continue
