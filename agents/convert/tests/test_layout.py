"""Finding versions, and making a new repository of what is not replaced."""

import os
from pathlib import Path

import pytest
from repoagent_convert.agent import copy_others, find_versions

from repoagent.api import InvalidArgumentError, UnsafePathError


def test_versions_are_found_in_order_of_number(tmp_path: Path) -> None:
    for name in ("10", "2", "1", "00", "01", "x1", "configs", "²"):
        (tmp_path / name).mkdir()
    assert find_versions(tmp_path) == ["1", "2", "10"]


def test_a_model_without_versions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no version directory"):
        find_versions(tmp_path)


def test_a_version_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "1").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePathError, match=r"^1 is a symbolic link"):
        find_versions(tmp_path)


def test_everything_else_is_copied(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "1" / "deep").mkdir(parents=True)
    (source / "2").mkdir()
    target.mkdir()
    for name in ("config.pbtxt", "1/labels.txt", "1/deep/.hidden", "1/model.onnx"):
        (source / name).write_bytes(b"1234")
    assert copy_others(source, target, {"1/model.onnx"}) == 12
    found = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
    assert found == ["1", "1/deep", "1/deep/.hidden", "1/labels.txt", "2", "config.pbtxt"]


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_a_link_or_special_file_is_not_copied(tmp_path: Path, kind: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "target").mkdir()
    if kind == "link":
        (tmp_path / "source" / "x").symlink_to("/etc/hostname")
    else:
        os.mkfifo(tmp_path / "source" / "x")
    with pytest.raises(UnsafePathError, match=r"^x is a link or a special file"):
        copy_others(tmp_path / "source", tmp_path / "target", ())
