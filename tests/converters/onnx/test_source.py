"""Finding the parts of an ONNX model."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from repoagent.api import ConversionSource
from repoagent.converters.onnx.source import OnnxModel
from repoagent.errors import InvalidArgumentError, UnsafePathError

Save = Callable[..., Path]


def find(tmp_path: Path, name: str = "model.onnx") -> OnnxModel:
    return OnnxModel.find(ConversionSource(tmp_path / "source" / "1", name, f"1/{name}"))


def test_external_data_belongs_to_the_model(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path) -> None:
    save(perceptron, data="weights.bin")
    model = find(tmp_path)
    assert model.parts == ("model.onnx", "weights.bin")
    assert model.replaced == model.parts


def test_data_that_another_model_may_share_is_kept(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path) -> None:
    save(perceptron, data="weights.bin")
    save(perceptron, "1/other.onnx")
    assert find(tmp_path).replaced == ("model.onnx",)


def test_a_model_may_be_a_directory(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path) -> None:
    save(perceptron, "1/model.onnx/model.onnx", data="weights.bin")
    model = find(tmp_path)
    assert model.parts == ("model.onnx/model.onnx", "model.onnx/weights.bin")
    assert model.replaced == ("model.onnx",)


def test_a_version_without_the_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "source" / "1").mkdir(parents=True)
    with pytest.raises(InvalidArgumentError, match=r"^1/model.onnx: no such file; the parameter 'input' names"):
        find(tmp_path)


def test_missing_data_is_refused(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path) -> None:
    save(perceptron, data="weights.bin").with_name("weights.bin").unlink()
    with pytest.raises(InvalidArgumentError, match=r"^1/model.onnx refers to 1/weights.bin, which is not there$"):
        find(tmp_path)


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
        find(tmp_path)


@pytest.mark.parametrize("link", ["1", "1/model.onnx", "1/weights.bin"])
def test_a_link_is_refused(save: Save, perceptron: "onnx.ModelProto", tmp_path: Path, link: str) -> None:
    save(perceptron, data="weights.bin")
    path = tmp_path / "source" / link
    path.rename(tmp_path / "moved")
    path.symlink_to(tmp_path / "moved")
    with pytest.raises(UnsafePathError, match=f"^{link} is a symbolic link"):
        find(tmp_path)
