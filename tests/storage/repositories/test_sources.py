import os
from collections.abc import Callable
from pathlib import Path

import pytest

from repoagent.errors import ConfigError, InvalidArgumentError, NotFoundError, UnsafePathError
from repoagent.storage.repositories.sources import MemorySource, open_source

Write = Callable[[Path, dict[str, bytes]], Path]


def test_a_fingerprint_sees_content_names_and_times(tmp_path: Path, write_tree: Write) -> None:
    model = open_source("m", str(write_tree(tmp_path, {"1/a": b"1", "config.pbtxt": b""})))
    seen = [model.fingerprint()]
    (tmp_path / "1/a").write_bytes(b"longer")
    seen.append(model.fingerprint())
    status = (tmp_path / "1/a").stat()
    os.utime(tmp_path / "1/a", ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    seen.append(model.fingerprint())
    (tmp_path / "1/a").rename(tmp_path / "1/b")
    seen.append(model.fingerprint())
    assert len(set(seen)) == 4
    assert model.fingerprint() == seen[-1]


def test_a_fingerprint_does_not_depend_on_where_the_model_lies(tmp_path: Path, write_tree: Write) -> None:
    write_tree(tmp_path / "one", {"1/a": b"1"})
    before = open_source("m", str(tmp_path / "one")).fingerprint()
    (tmp_path / "one").rename(tmp_path / "two")
    assert open_source("m", str(tmp_path / "two")).fingerprint() == before


def test_a_config_that_is_not_text_is_a_config_error(tmp_path: Path, write_tree: Write) -> None:
    model = open_source("m", str(write_tree(tmp_path, {"config.pbtxt": b"name: \xff"})))
    with pytest.raises(ConfigError, match=r"config\.pbtxt: byte 6"):
        model.read_config_text()


def test_a_config_name_cannot_leave_the_model(tmp_path: Path) -> None:
    with pytest.raises(UnsafePathError):
        open_source("m", str(tmp_path)).read_config_text("../config.pbtxt")


def test_a_named_pipe_in_a_model_is_refused_and_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafePathError, match="pipe"):
        open_source("m", str(tmp_path)).entries()


def test_a_model_that_is_gone_or_a_file_is_said(tmp_path: Path, write_tree: Write) -> None:
    write_tree(tmp_path, {"file": b""})
    for name in ("gone", "file"):
        with pytest.raises(NotFoundError, match=name):
            open_source("m", str(tmp_path / name)).fingerprint()


@pytest.mark.parametrize("how", ["written over", "renamed", "linked"])
def test_a_file_of_the_same_size_and_time_is_another_one(tmp_path: Path, write_tree: Write, how: str) -> None:
    """What ``cp -p``, ``rsync -a`` or a reproducible build leaves: retrained weights have the size of the old ones."""
    write_tree(tmp_path, {"new": b"two", "m/old": b"one", "m/1/a": b"one"})
    file = tmp_path / "m/1/a"
    if how == "linked":
        file.unlink()
        file.symlink_to("../old")  # As a Kubernetes volume has them.
    for path in (tmp_path / "new", tmp_path / "m/old", file):
        os.utime(path, ns=(7, 7))
    model = open_source("m", str(tmp_path / "m"))
    before = model.fingerprint()
    assert model.fingerprint() == before
    file.read_bytes()
    assert model.fingerprint() == before
    if how == "written over":
        file.write_bytes(b"two")
    elif how == "renamed":
        (tmp_path / "new").rename(file)
    else:
        (tmp_path / "new").rename(tmp_path / "m/old")
    os.utime(file, ns=(7, 7))
    assert (file.stat().st_size, file.stat().st_mtime_ns) == (3, 7)
    assert model.fingerprint() != before


def test_a_model_of_bytes_has_the_same_interface() -> None:
    files = {"config.pbtxt": b'name: "m"', "1/model.onnx": b"one"}
    model = MemorySource("m", files)
    assert model.is_remote
    assert model.read_config_text() == 'name: "m"'
    assert model.versions() == [1]
    assert model.fingerprint() == MemorySource("other", dict(files)).fingerprint()
    assert model.fingerprint() != MemorySource("m", {**files, "1/model.onnx": b"two"}).fingerprint()
    assert model.fs.cat_file(f"{model.root}/1/model.onnx") == b"one"


def test_two_models_of_bytes_do_not_see_each_other() -> None:
    first, second = MemorySource("m", {"1/a": b"1"}), MemorySource("m", {"2/a": b"2"})
    assert (first.versions(), second.versions()) == ([1], [2])


@pytest.mark.parametrize("name", ["../x", "/x", "1/../../x", "", "a//b"])
def test_a_model_of_bytes_refuses_unsafe_names(name: str) -> None:
    with pytest.raises(InvalidArgumentError):
        MemorySource("m", {name: b""})
