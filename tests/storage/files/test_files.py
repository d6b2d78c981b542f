import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import NotFoundError, UnsafePathError
from repoagent.storage.files.files import DirectoryFiles, MemoryFiles, ModelFiles, SourceFiles
from repoagent.storage.repositories.sources import MemorySource, open_source

Write = Callable[[Path, dict[str, bytes]], Path]
_FILES = {"config.pbtxt": b"c", "1/model.onnx": b"one", "1/data/w.bin": b"weights", "2/model.onnx": b"two"}


def _spill(path: Path) -> Callable[[], Path]:
    def make() -> Path:
        path.mkdir()
        return path

    return make


def _no_fetch(subtree: str) -> Path:
    raise AssertionError(f"fetched {subtree!r}")


@pytest.fixture(params=["directory", "memory", "local source", "remote source"])
def files(request: pytest.FixtureRequest, tmp_path: Path, write_tree: Write) -> ModelFiles:
    root = write_tree(tmp_path / "m", _FILES)
    match request.param:
        case "directory":
            return DirectoryFiles(root)
        case "memory":
            return MemoryFiles(_FILES, _spill(tmp_path / "spill"))
        case "local source":
            return SourceFiles(open_source("m", str(root)), _no_fetch)
        case _:
            return SourceFiles(MemorySource("m", _FILES), lambda subtree: root / subtree)


def test_contents_come_as_bytes_and_as_a_stream(files: ModelFiles) -> None:
    assert files.bytes("1/model.onnx") == b"one"
    with files.open("1/data/w.bin") as reader:
        assert reader.read(3) == b"wei"
        assert reader.read() == b"ghts"


def test_names_are_sorted_and_one_level_deep(files: ModelFiles) -> None:
    assert files.names() == ["1", "2", "config.pbtxt"]
    assert files.names("1") == ["data", "model.onnx"]
    assert files.names("config.pbtxt") == files.names("absent") == files.names("1/absent") == []
    assert files.directories() == ["1", "2"]


def test_exists_knows_files_and_directories(files: ModelFiles) -> None:
    assert all(files.exists(path) for path in ("", "config.pbtxt", "1", "1/data", "1/data/w.bin", "./1"))
    assert not any(files.exists(path) for path in ("3", "1/model", "config.pbtxt/x", "1/data/w.bin/x"))


def test_a_local_path_leads_to_the_file_and_its_neighbours(files: ModelFiles) -> None:
    path = files.local_path("1")
    assert (path / "data" / "w.bin").read_bytes() == b"weights"
    assert files.local_path("1/model.onnx").read_bytes() == b"one"
    assert files.local_path("config.pbtxt").read_bytes() == b"c"
    assert (files.local_path() / "2" / "model.onnx").read_bytes() == b"two"


def test_what_is_not_there_is_not_found(files: ModelFiles) -> None:
    for path in ("absent", "1/absent", "config.pbtxt/x", "x" * 300):
        for ask in (files.bytes, files.open, files.local_path):
            with pytest.raises(NotFoundError, match="the model has no"):
                ask(path)
    with pytest.raises(NotFoundError):
        files.bytes("1")


@pytest.mark.parametrize("path", ["../m/config.pbtxt", "/etc/passwd", "1/../../x"])
def test_a_path_that_leaves_the_model_is_refused(files: ModelFiles, path: str) -> None:
    asks: list[Callable[[str], Any]] = [files.bytes, files.open, files.local_path, files.exists, files.names]
    for ask in asks:
        with pytest.raises(UnsafePathError):
            ask(path)


def test_a_link_that_leaves_a_directory_is_refused(tmp_path: Path, write_tree: Write) -> None:
    root = write_tree(tmp_path / "m", _FILES)
    (root / "leak").symlink_to("/etc/passwd")
    (root / "same").symlink_to("1")
    files = DirectoryFiles(root)
    assert files.bytes("same/model.onnx") == b"one"
    with pytest.raises(UnsafePathError, match="leaves the model's directory"):
        files.bytes("leak")


def test_messages_do_not_say_where_plaintext_lies(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        DirectoryFiles(tmp_path).bytes("absent")
    assert str(tmp_path) not in str(caught.value)


def test_memory_is_spilled_only_when_asked_and_only_what_is_asked(tmp_path: Path) -> None:
    files = MemoryFiles(_FILES, _spill(tmp_path / "spill"))
    assert files.bytes("1/model.onnx") is _FILES["1/model.onnx"]
    files.names("1")
    assert not (tmp_path / "spill").exists()
    path = files.local_path("1/data/w.bin")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert sorted(os.listdir(tmp_path / "spill")) == ["1"]
    assert not (tmp_path / "spill/1/model.onnx").exists()
    before = path.stat().st_mtime_ns
    assert files.local_path() == tmp_path / "spill"
    assert path.stat().st_mtime_ns == before


def test_a_remote_model_is_fetched_one_version_at_a_time(tmp_path: Path, write_tree: Write) -> None:
    fetched: list[str] = []

    def fetch(subtree: str) -> Path:
        fetched.append(subtree)
        return tmp_path / "m" / subtree

    write_tree(tmp_path / "m", _FILES)
    files = SourceFiles(MemorySource("m", _FILES), fetch)
    files.bytes("1/model.onnx")
    assert files.exists("2")
    assert fetched == []
    files.local_path("1/model.onnx")
    files.local_path("1")
    assert fetched == ["1"]
    files.local_path("config.pbtxt")
    files.local_path("2")
    assert fetched == ["1", ""]
