"""One file of a few megabytes or of many gigabytes can take a scan a minute: a load that is cancelled ends before."""

from pathlib import Path

import pytest
from repoagent_scan.scan_options import Options
from repoagent_scan.scanning import scan

from agents.scan.tests.making_models import onnx_model
from repoagent.errors import CancelledError


def of_fields() -> bytes:
    """An ONNX model whose graph is two million empty nodes: two bytes each."""
    graph = b"\x0a\x00" * 2_000_000
    size, length = len(graph), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return onnx_model().SerializeToString() + b"\x3a" + length + bytes([size]) + graph


@pytest.mark.parametrize("content", [of_fields(), b"some text\n" * 2_000_000], ids=["fields", "text"])
def test_a_cancelled_scan_ends_within_the_file(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "file").write_bytes(content)
    asked = 0

    def cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    with pytest.raises(CancelledError):
        scan(tmp_path, Options(), cancelled=cancelled)
    assert asked == 4
