"""Completeness of split safetensors models."""

import json
import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_checksum.safetensors import check_index

from repoagent.api import InvalidArgumentError, UnsafePathError

INDEX = "1/model.safetensors.index.json"


def shard(*tensors: str) -> bytes:
    header = {name: {"dtype": "U8", "shape": [4], "data_offsets": [4 * i, 4 * i + 4]} for i, name in enumerate(tensors)}
    text = json.dumps({"__metadata__": {"format": "pt"}} | header).encode()
    return struct.pack("<Q", len(text)) + text + b"data" * len(tensors)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "a.safetensors").write_bytes(shard("x", "y"))
    (tmp_path / "1" / "b.safetensors").write_bytes(shard("z"))
    weights = {"x": "a.safetensors", "y": "a.safetensors", "z": "b.safetensors"}
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {"total_size": 12}, "weight_map": weights}))
    return tmp_path


def test_a_complete_model_has_no_fault(model: Path) -> None:
    assert check_index(model, INDEX) == []


def test_a_missing_shard_is_named(model: Path) -> None:
    (model / "1" / "b.safetensors").unlink()
    assert check_index(model, INDEX) == ["shard 1/b.safetensors: No such file or directory"]


@pytest.mark.parametrize("change", [-1, 1])
def test_a_shard_of_the_wrong_length_is_named(model: Path, change: int) -> None:
    path = model / "1" / "b.safetensors"
    data = path.read_bytes()
    path.write_bytes(data[:change] if change < 0 else data + b"!")
    (fault,) = check_index(model, INDEX)
    assert fault == f"shard 1/b.safetensors has {len(data) + change} bytes, its header speaks of {len(data)}"


def test_a_shard_without_a_tensor_is_named(model: Path) -> None:
    (model / "1" / "a.safetensors").write_bytes(shard("x"))
    assert check_index(model, INDEX) == ["shard 1/a.safetensors lacks 1 tensors, the first is 'y'"]


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 7, struct.pack("<Q", 1 << 62), struct.pack("<Q", 2) + b"[]", b"\xff" * 40]
)
def test_a_shard_that_is_no_safetensors_file_is_named(model: Path, content: bytes) -> None:
    (model / "1" / "a.safetensors").write_bytes(content)
    (fault,) = check_index(model, INDEX)
    assert fault.startswith("shard 1/a.safetensors is not a safetensors file")


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"weight_map": []}', b"[" * 100_000])
def test_a_broken_index_is_refused(model: Path, content: bytes) -> None:
    (model / INDEX).write_bytes(content)
    with pytest.raises(InvalidArgumentError, match="not a safetensors index"):
        check_index(model, INDEX)


MANY = b'{"a": [' + b"[]," * 600_000 + b"0]}"
"""A hundred megabytes of these would stop every thread of the server for ten seconds."""


def test_a_header_of_a_million_values_is_not_parsed(model: Path) -> None:
    (model / "1" / "b.safetensors").write_bytes(struct.pack("<Q", len(MANY)) + MANY)
    assert check_index(model, INDEX) == ["shard 1/b.safetensors is not a safetensors file: more than 1000000 values"]


def test_an_index_of_a_million_values_is_not_parsed(model: Path) -> None:
    (model / INDEX).write_bytes(MANY)
    with pytest.raises(InvalidArgumentError, match="more than 1000000 values"):
        check_index(model, INDEX)


def test_an_index_of_nothing_is_refused(model: Path) -> None:
    (model / INDEX).write_text('{"weight_map": {}}')
    with pytest.raises(InvalidArgumentError, match="names no shard"):
        check_index(model, INDEX)


def test_a_shard_outside_of_the_model_is_refused(model: Path) -> None:
    (model / INDEX).write_text('{"weight_map": {"x": "../../b.safetensors"}}')
    with pytest.raises(UnsafePathError):
        check_index(model, INDEX)


def test_a_shard_that_is_a_link_is_refused(model: Path) -> None:
    (model / "1" / "a.safetensors").unlink()
    (model / "1" / "a.safetensors").symlink_to("b.safetensors")
    with pytest.raises(UnsafePathError):
        check_index(model, INDEX)


def test_files_written_by_the_library_are_complete(tmp_path: Path) -> None:
    numpy = pytest.importorskip("numpy")
    save_file = pytest.importorskip("safetensors.numpy").save_file
    save_file({"x": numpy.ones((3, 5), "float32"), "e": numpy.ones((0,), "int8")}, tmp_path / "a.safetensors")
    (tmp_path / "i.safetensors.index.json").write_text('{"weight_map": {"x": "a.safetensors", "e": "a.safetensors"}}')
    assert check_index(tmp_path, "i.safetensors.index.json") == []


@given(st.binary(max_size=200))
def test_any_bytes_are_a_shard_or_a_fault(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    root = tmp_path_factory.getbasetemp() / "fuzz"
    root.mkdir(exist_ok=True)
    (root / "i").write_text('{"weight_map": {"x": "a"}}')
    (root / "a").write_bytes(data)
    assert len(check_index(root, "i")) >= 1
