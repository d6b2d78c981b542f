"""One file of a few megabytes or of many gigabytes can take a scan a minute: a load that is cancelled ends before."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from repoagent_scan.scan_options import Options
from repoagent_scan.scanning import scan

from agents.scan.tests.making_models import onnx_model
from agents.scan.tests.test_corpus import code, external, onnx_besides, pickles
from repoagent.errors import CancelledError, RepoAgentError
from repoagent.testing import write_files
from tests.hostile.conftest import NewCore


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


# T19, T20: a scan that the operator demands judges a file as the backend opens it, whatever it looks like.

POLICY = """
[[rule]]
models = ["*"]
after = [{ agent = "scan", parameters = { modelaudit = "off" } }]
"""
PICKLES = [(name, {"1/model.onnx": b"", "1/weights": content}) for name, content in pickles()]
FORMS = [*onnx_besides(), *code(), *PICKLES, *external()]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "files"), FORMS, ids=[name for name, _ in FORMS])
def test_a_model_with_code_in_it_is_refused_by_the_scan(
    repository: Path, new_core: NewCore, name: str, files: Mapping[str, bytes]
) -> None:
    write_files(repository / "m", {"1/labels.txt": b"", **files})
    core = new_core(policy=POLICY)
    with pytest.raises(RepoAgentError, match=r"agent 'scan'"):
        core.load("m")
    assert not core.model_ready("m"), name
