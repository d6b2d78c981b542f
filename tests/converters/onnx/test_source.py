"""Finding the parts of an ONNX model."""

from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from repoagent.api import ConversionSource
from repoagent.converters.onnx.source import OnnxModel
from repoagent.errors import InvalidArgumentError, UnsafePathError
from repoagent.onnx_files.external_files import external_files

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


# The walk over the ONNX format, against models that the onnx package writes.


def external_tensor(location: str) -> "onnx.TensorProto":
    tensor = TensorProto(name=location, data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    tensor.external_data.add(key="offset", value="0")
    return tensor


def test_a_model_with_weights_inside_needs_no_other_file(save: Save, perceptron: "onnx.ModelProto") -> None:
    assert external_files(save(perceptron), "m") == frozenset()


def test_external_data_is_found(save: Save, perceptron: "onnx.ModelProto") -> None:
    assert external_files(save(perceptron, data="weights.bin"), "m") == {"weights.bin"}


def test_external_data_is_found_wherever_a_tensor_can_be(tmp_path: Path) -> None:
    branch = helper.make_graph([], "branch", [], [], [external_tensor("subgraph")])
    sparse = onnx.SparseTensorProto(values=external_tensor("sparse"), indices=external_tensor("indices"), dims=[4])
    nodes = [
        helper.make_node("Constant", [], ["a"], value=external_tensor("attribute")),
        helper.make_node("If", ["a"], ["b"], then_branch=branch, else_branch=branch),
        helper.make_node("Constant", [], ["c"], sparse_value=sparse),
        helper.make_node("Custom", [], ["d"], tensors=[external_tensor("list")], graphs=[branch], domain="x"),
    ]
    graph = helper.make_graph(nodes, "g", [], [], [external_tensor("initializer")])
    graph.sparse_initializer.append(onnx.SparseTensorProto(values=external_tensor("sparse initializer"), dims=[4]))
    inner = helper.make_node("Constant", [], ["y"], value=external_tensor("function"))
    function = helper.make_function("x", "F", [], ["y"], [inner], [helper.make_opsetid("", 17)])
    path = tmp_path / "m.onnx"
    path.write_bytes(helper.make_model(graph, functions=[function]).SerializeToString())
    assert external_files(path, "m") == {
        "subgraph", "sparse", "indices", "attribute", "list", "initializer", "sparse initializer", "function"
    }  # fmt: skip


@pytest.mark.parametrize("content", [b"", b"hello world, this is text", b'name: "x"', b"\x08\x08", b"\xff" * 20])
def test_what_is_not_onnx_is_refused_by_name(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m").write_bytes(content)
    with pytest.raises(InvalidArgumentError, match=r"^1/model.onnx is not an ONNX model"):
        external_files(tmp_path / "m", "1/model.onnx")


def test_any_cut_is_seen(save: Save, perceptron: "onnx.ModelProto") -> None:
    path = save(perceptron)
    data = path.read_bytes()
    graph_end = len(data) - len(onnx.ModelProto(opset_import=perceptron.opset_import).SerializeToString())
    for length in range(0, graph_end, 97):
        path.write_bytes(data[:length])
        with pytest.raises(InvalidArgumentError):
            external_files(path, "m")


@pytest.mark.slow
@settings(max_examples=300)
@given(st.binary(min_size=1, max_size=60), st.integers(0, 60))
def test_any_bytes_are_walked_or_refused(tmp_path_factory: pytest.TempPathFactory, noise: bytes, at: int) -> None:
    tensor = helper.make_graph([], "g", [], [], [external_tensor("w")])
    data = bytearray(helper.make_model(tensor).SerializeToString())
    data[at : at + len(noise)] = noise
    path = tmp_path_factory.getbasetemp() / "fuzz.onnx"
    path.write_bytes(data)
    try:
        external_files(path, "m")
    except InvalidArgumentError:
        return
