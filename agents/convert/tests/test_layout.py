"""Finding the parts of a model, and making a new repository of the rest."""

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from repoagent_convert.layout import copy_others, find_model_files, link_or_copy

from repoagent.api import InvalidArgumentError, UnsafePathError

Save = Callable[..., Path]


def test_versions_are_found_in_order_of_number(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path) -> None:
    for version in ("10", "2", "1"):
        save(perceptron, f"{version}/model.onnx")
    for other in ("00", "01", "x1", "configs", "²"):
        (tmp_path / "source" / other).mkdir()
    assert [file.path for file in find_model_files(tmp_path / "source", "model.onnx")] == [
        "1/model.onnx",
        "2/model.onnx",
        "10/model.onnx",
    ]


def test_external_data_belongs_to_the_model(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path) -> None:
    save(perceptron, data="weights.bin")
    (file,) = find_model_files(tmp_path / "source", "model.onnx")
    assert file.parts == ("1/model.onnx", "1/weights.bin")
    assert file.replaced(tmp_path / "source") == file.parts


def test_data_that_another_model_may_share_is_kept(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path) -> None:
    save(perceptron, data="weights.bin")
    save(perceptron, "1/other.onnx")
    (file,) = find_model_files(tmp_path / "source", "model.onnx")
    assert file.replaced(tmp_path / "source") == ("1/model.onnx",)


def test_a_model_may_be_a_directory(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path) -> None:
    save(perceptron, "1/model.onnx/model.onnx", data="weights.bin")
    (file,) = find_model_files(tmp_path / "source", "model.onnx")
    assert file.parts == ("1/model.onnx/model.onnx", "1/model.onnx/weights.bin")
    assert file.replaced(tmp_path / "source") == ("1/model.onnx",)


def test_a_model_without_versions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="no version directory"):
        find_model_files(tmp_path, "model.onnx")


def test_a_version_without_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"^1/model.onnx: no such file; the parameter 'input' names"):
        find_model_files(tmp_path, "model.onnx")


def test_missing_data_is_refused(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path) -> None:
    save(perceptron, data="weights.bin").with_name("weights.bin").unlink()
    with pytest.raises(InvalidArgumentError, match=r"^1/model.onnx refers to 1/weights.bin, which is not there$"):
        find_model_files(tmp_path / "source", "model.onnx")


@pytest.mark.parametrize("location", ["../w.bin", "/etc/hostname", "a/../../w.bin"])
def test_data_outside_of_the_version_is_refused(
    save: Save, perceptron: "onnx.ModelProto", tmp_path: Path, location: str
) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "w.bin").write_bytes(b"secret")
    tensor = perceptron.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    (tmp_path / "source" / "1").mkdir()
    (tmp_path / "source" / "1" / "model.onnx").write_bytes(perceptron.SerializeToString())
    with pytest.raises(UnsafePathError, match="data outside of its directory"):
        find_model_files(tmp_path / "source", "model.onnx")


@pytest.mark.parametrize("link", ["1", "1/model.onnx", "1/weights.bin"])
def test_a_link_is_refused(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path, link: str) -> None:
    save(perceptron, data="weights.bin")
    path = tmp_path / "source" / link
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(UnsafePathError, match=f"^{link} is a symbolic link"):
        find_model_files(tmp_path / "source", "model.onnx")


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


def test_files_are_linked_and_where_that_fails_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kept", "linked", "copied"):
        (tmp_path / name).mkdir()
    (tmp_path / "kept" / "model.onnx").write_bytes(b"1234")
    assert link_or_copy(tmp_path / "kept", tmp_path / "linked") == 0
    assert (tmp_path / "linked" / "model.onnx").samefile(tmp_path / "kept" / "model.onnx")

    def other_filesystem(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr(Path, "hardlink_to", other_filesystem)
    assert link_or_copy(tmp_path / "kept", tmp_path / "copied") == 4
    assert (tmp_path / "copied" / "model.onnx").read_bytes() == b"1234"
