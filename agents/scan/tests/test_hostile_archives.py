"""Archives that are small and unpack to much, lie about their sizes, or have members by the million."""

import io
import random
import struct
import tracemalloc
import zipfile
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from repoagent_scan.formats.detection import detect
from repoagent_scan.formats.format import Format, MalformedError
from repoagent_scan.formats.zipped import is_keras, skops_types

from agents.scan.tests.test_detection import SCHEMA, npy, skops
from tests.extent import in_full

ARRAY = npy(np.zeros(3))
KERAS = ("metadata.json", "config.json", "model.weights.h5")
MOST = 12 << 20
"""The bytes that a look at one of these may take."""


def lying(method: int, content: bytes = bytes(50 << 20)) -> bytes:
    """A file of skops whose array unpacks to ``content``, and claims to have a few bytes."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", method) as file:
        file.writestr("1.npy", ARRAY + content)
        file.writestr("schema.json", SCHEMA)
    true, claimed = (struct.pack("<I", size) for size in (len(ARRAY + content), len(ARRAY)))
    before, after = (struct.pack("<I", zlib.crc32(one)) for one in (ARRAY + content, ARRAY))
    return buffer.getvalue().replace(true, claimed).replace(before, after)


def members(count: int, filling: int = 0) -> bytes:
    """A file of skops whose list has one array ``count`` times, packed behind ``filling`` blocks of nothing."""
    packed = b"\0\0\0\xff\xff" * filling + b"\1" + struct.pack("<2H", len(ARRAY), len(ARRAY) ^ 0xFFFF) + ARRAY
    sizes = struct.pack("<3I2H", zlib.crc32(ARRAY), len(packed), len(ARRAY), 5, 0)
    last = struct.pack("<3I2H", zlib.crc32(SCHEMA), len(SCHEMA), len(SCHEMA), 11, 0)
    head = b"PK\3\4" + struct.pack("<5H", 20, 0, 8, 0, 0) + sizes + b"1.npy" + packed
    body = head + b"PK\3\4" + struct.pack("<5H", 20, 0, 0, 0, 0) + last + b"schema.json" + SCHEMA
    one = b"PK\1\2" + struct.pack("<6H", 20, 20, 0, 8, 0, 0) + sizes + bytes(14) + b"1.npy"
    schema = b"PK\1\2" + struct.pack("<6H", 20, 20, 0, 0, 0, 0) + last + bytes(10) + struct.pack("<I", len(head))
    table = one * count + schema + b"schema.json"
    wide = b"PK\6\6" + struct.pack("<QHHIIQQQQ", 44, 45, 45, 0, 0, count + 1, count + 1, len(table), len(body))
    found = b"PK\6\7" + struct.pack("<IQI", 0, len(body + table), 1)
    end = b"PK\5\6" + struct.pack("<4H2IH", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
    return body + table + wide + found + end


def keras(*names: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        for name in names:
            file.writestr(name, b"{}")
    return buffer.getvalue()


BOMBS: dict[str, Callable[[], bytes]] = {
    "deflate": lambda: lying(zipfile.ZIP_DEFLATED),
    "bzip2": lambda: lying(zipfile.ZIP_BZIP2),
    "LZMA": lambda: lying(zipfile.ZIP_LZMA),
    "many members": lambda: members(40_000),
    "members that share their bytes": lambda: members(50, filling=100_000),
    "a schema of many values": lambda: skops(b'{"__class__": "f", "x": [' + b"[]," * 700_000 + b"[]]}"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_bomb_takes_little_memory_and_few_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, read = BOMBS[name](), [0]
    real = zipfile.ZipExtFile._read2  # type: ignore[attr-defined]

    def count(self: zipfile.ZipExtFile, size: int) -> bytes:
        read[0] += len(found := real(self, size))
        return bytes(found)

    monkeypatch.setattr(zipfile.ZipExtFile, "_read2", count)
    tracemalloc.start()
    try:
        assert detect("model.skops", data) is Format.ARCHIVE
        assert tracemalloc.get_traced_memory()[1] < MOST + 2 * len(data)
    finally:
        tracemalloc.stop()
    assert read[0] <= len(data)


def test_an_honest_list_of_the_same_form_is_one_of_skops() -> None:
    assert skops_types(members(1, filling=1)) == ["None.f", "sklearn.linear_model.Ridge"]


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("more", [["config.json"], ["../config.json"], ["assets/x"], ["a.zip"], ["/config.json"]])
def test_what_keras_does_not_write_is_another_archive(more: list[str]) -> None:
    assert is_keras(keras(*KERAS))
    assert detect("model.keras", keras(*KERAS, *more)) is Format.ARCHIVE


@pytest.mark.parametrize("more", ["../1.npy", "/1.npy", "x/1.npy", "1.npy/", "a.zip", "1.npz", "schema.json"])
@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_what_skops_does_not_write_is_another_archive(more: str) -> None:
    assert detect("model.skops", skops(more={more: ARRAY})) is Format.ARCHIVE


def test_damaged_archives_are_judged_without_an_error_of_python() -> None:
    source, buffer = random.Random(28), io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("1.npy", npy(np.zeros(300)))
        file.writestr("schema.json", SCHEMA)
    for _ in range(in_full(10_000, otherwise=300)):
        data = bytearray(buffer.getvalue())
        for _ in range(source.randint(1, 4)):
            place = source.randrange(4, len(data))
            data[place : place + source.randint(0, 6)] = source.randbytes(source.randint(0, 6))
        try:
            detect("model.skops", bytes(data))
        except MalformedError:
            continue
