"""Files made against the scan: parsers that disagree, memory that outgrows the file, files that shrink."""

import os
import tracemalloc
from pathlib import Path

import pytest
from click.testing import CliRunner
from onnx import helper
from repoagent_scan.cli import scan_command
from repoagent_scan.formats.content import read_content
from repoagent_scan.formats.detection import detect
from repoagent_scan.formats.format import MalformedError
from repoagent_scan.formats.onnx import read_onnx
from repoagent_scan.scanning import Finding, describe

from agents.scan.tests.making_models import onnx_model, with_external_data
from tests.extent import in_full


def varint(number: int) -> bytes:
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def with_in_graph(more: bytes) -> bytes:
    """A model with the bytes ``more`` at the end of its graph."""
    model = onnx_model()
    graph = model.graph.SerializeToString() + more
    model.ClearField("graph")
    return model.SerializeToString() + b"\x3a" + varint(len(graph)) + graph


@pytest.mark.parametrize("bit", [32, 33, 34])
def test_a_node_in_a_field_whose_number_onnx_runtime_cuts_off_is_not_overlooked(bit: int) -> None:
    """ONNX Runtime drops the bits above 32 of a tag, and so finds the node that others take for an unknown field."""
    node = helper.make_node("Evil", ["x"], ["z"], domain="com.vendor").SerializeToString()
    with pytest.raises(MalformedError, match="cannot have"):
        read_onnx(with_in_graph(varint(0x0A | 1 << bit) + varint(len(node)) + node))


def test_a_name_that_is_too_long_is_not_cut_off() -> None:
    with pytest.raises(MalformedError, match="a name of"):
        read_onnx(with_external_data("a/../" * 1000 + "../../secret"))


@pytest.mark.slow
def test_many_empty_nodes_take_little_memory() -> None:
    nodes, fields = in_full(300_000, otherwise=60_000), in_full(50_000, otherwise=20_000)
    content = with_in_graph(b"\x0a\0" * nodes + b"".join(varint(n << 3 | 2) + b"\0" for n in range(100, fields)))
    tracemalloc.start()
    try:
        read_onnx(content)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("size", [1 << 20, 65 << 20])
def test_a_file_that_another_process_cuts_short_is_refused_and_the_server_lives(tmp_path: Path, size: int) -> None:
    path = tmp_path / "labels.txt"
    path.write_bytes(b"a" * size)
    with path.open("rb") as file:
        content = read_content(file.fileno())
        os.truncate(path, 4096)
        if size > 64 << 20:
            with pytest.raises(MalformedError, match="became shorter"):
                detect("labels.txt", content)
            with pytest.raises(MalformedError, match="became shorter"):
                content[size - 1]
        else:
            assert content[size - 1] == ord("a")


def test_a_large_file_reads_as_its_bytes_do(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    model = onnx_model()
    model.graph.initializer.add(name="w", data_type=2, dims=[65 << 20], raw_data=bytes(65 << 20))
    content = model.SerializeToString()
    path.write_bytes(content)
    with path.open("rb") as file:
        large = read_content(file.fileno())
        assert (len(large), large[5], large[-9:]) == (len(content), content[5], content[-9:])
        assert detect("m", large) is detect("m", content)
        assert read_onnx(large) == read_onnx(content)


def test_a_finding_shows_no_control_characters_and_no_megabytes() -> None:
    finding = Finding("a\x1b]0;owned\x07\n0 findings\udcff", "x" * 5_000_000, 'allow_file = "a\x1b"')
    text = describe([finding]) + str(finding)
    assert "a\\x1b]0;owned\\x07\\n0 findings\\udcff: xxx" in text
    assert text.isprintable()
    assert len(text) < 5000


def test_the_names_of_a_hostile_model_reach_the_terminal_escaped(tmp_path: Path) -> None:
    (tmp_path / "a\x1b[2J\n").write_bytes(b"\0\1")
    result = CliRunner().invoke(scan_command, [str(tmp_path)], color=True)
    assert "a\\x1b[2J\\n: unknown" in result.stderr
    assert "\x1b" not in result.stderr
