"""What our reader of ONNX does not see, or runs out of memory on, while ONNX Runtime takes the file."""

import tracemalloc
from pathlib import Path

import pytest

from repoagent.errors import InvalidArgumentError, UnsafePathError
from repoagent.loader.converting.result_files import refuse_foreign
from repoagent.onnx_files.external_files import external_files

HIDDEN = b"\xba\x80\x80\x80\x10"
"""The tag of a graph with bit 32 set, which ONNX Runtime does not look at."""


def varint(number: int) -> bytes:
    return bytes([number & 127 | 128, number >> 7] if number > 127 else [number])


def field(number: int, content: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(content)) + content


FOREIGN = field(1, field(4, b"Gelu") + field(7, b"com.vendor"))
EXTERNAL = field(5, field(13, field(1, b"location") + field(2, b"/etc/passwd")))


def test_a_tag_that_others_read_differently_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(field(7, b"") + HIDDEN + field(7, EXTERNAL)[1:])
    with pytest.raises(InvalidArgumentError, match="a tag of more than 32 bits"):
        external_files(path, "model.onnx")


@pytest.mark.parametrize(
    ("content", "name", "text"),
    [
        (field(7, field(15, b"") + FOREIGN), "model.onnx", "operators of others: 'com.vendor'"),
        (field(7, FOREIGN), "model.bin", "operators of others: 'com.vendor'"),
        (field(7, EXTERNAL), "model.bin", "names other files"),
        (field(7, b"") + field(25, field(7, field(7, b"com.vendor"))), "model.onnx", "the result has functions"),
    ],
    ids=["behind a sparse tensor", "another name", "another name, files", "in a function"],
)
def test_a_result_hides_no_operator_and_no_file(content: bytes, name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UnsafePathError, match=text):
        refuse_foreign(tmp_path, name, "onnx", "1/m.pkl")


def test_a_result_of_nodes_alone_takes_no_memory(tmp_path: Path) -> None:
    nodes = b"\x0a\x00" * 100_000
    size = len(nodes)
    head = bytes([7 << 3 | 2, size & 127 | 128, size >> 7 & 127 | 128, size >> 14])
    (tmp_path / "model.onnx").write_bytes(head + nodes)
    tracemalloc.start()
    try:
        refuse_foreign(tmp_path, "model.onnx", "onnx", "1/m.pkl")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
