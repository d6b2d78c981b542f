"""Operators and external data of models made with the onnx package."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from repoagent_scan.formats.detection import detect
from repoagent_scan.formats.format import ACCEPTED, Format, MalformedError
from repoagent_scan.formats.onnx import is_onnx, read_onnx

from agents.scan.tests.making_models import onnx_model, with_external_data

NONE: frozenset[str] = frozenset()
CUSTOM = helper.make_node("FastGelu", ["x"], ["y"], domain="com.vendor")


def read(model: onnx.ModelProto) -> list[str]:
    return read_onnx(model.SerializeToString()).custom(NONE)


def test_standard_operators_are_not_custom() -> None:
    gelu = helper.make_node("FastGelu", ["x"], ["y"], domain="com.microsoft")
    assert read(onnx_model(helper.make_node("Relu", ["x"], ["y"]), gelu)) == []


def test_an_operator_of_another_domain_is_custom_until_its_domain_or_itself_is_allowed() -> None:
    content = read_onnx(onnx_model(CUSTOM).SerializeToString())
    assert content.custom(NONE) == ["com.vendor::FastGelu"]
    assert content.custom(frozenset({"com.vendor"})) == []


def test_an_operator_in_a_subgraph_is_found() -> None:
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    branch = helper.make_graph([CUSTOM], "then", [], [output])
    choice = helper.make_node("If", ["x"], ["y"], then_branch=branch, else_branch=branch)
    assert read(onnx_model(choice)) == ["com.vendor::FastGelu"]


def test_functions_of_the_model_are_looked_into_and_are_not_custom_themselves() -> None:
    opsets = [helper.make_opsetid("", 21)]
    plain = helper.make_function("local", "Twice", ["x"], ["y"], [helper.make_node("Add", ["x", "x"], ["y"])], opsets)
    call = helper.make_node("Twice", ["x"], ["y"], domain="local")
    assert read(onnx_model(call, functions=(plain,))) == []
    opsets.append(helper.make_opsetid("com.vendor", 1))
    hidden = helper.make_function("local", "Twice", ["x"], ["y"], [CUSTOM], opsets)
    assert read(onnx_model(call, functions=(hidden,))) == ["com.vendor::FastGelu"]


def test_a_graph_for_training_is_looked_into() -> None:
    model = onnx_model()
    model.training_info.add().initialization.node.append(CUSTOM)
    assert read(model) == ["com.vendor::FastGelu"]


@pytest.mark.parametrize("name", ["EPContext", "PyOp"])
def test_built_in_operators_that_load_code_are_custom(name: str) -> None:
    node = helper.make_node(name, ["x"], ["y"], domain="com.microsoft")
    content = read_onnx(onnx_model(node).SerializeToString())
    assert content.custom(NONE) == [f"com.microsoft::{name}"]
    assert content.custom(frozenset({f"com.microsoft::{name}"})) == []


def test_a_second_graph_in_the_same_file_counts_because_protobuf_merges_it() -> None:
    two = onnx_model().SerializeToString() + onnx.ModelProto(graph=onnx.GraphProto(node=[CUSTOM])).SerializeToString()
    assert [node.op_type for node in onnx.load_from_string(two).graph.node] == ["Identity", "FastGelu"]
    assert read_onnx(two).custom(NONE) == ["com.vendor::FastGelu"]


def test_the_files_of_external_data_are_found() -> None:
    assert read_onnx(with_external_data("weights.bin")).external == {"weights.bin": {(0, 16)}}


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_model_that_is_cut_off_is_not_onnx(cut: int) -> None:
    assert not is_onnx(onnx_model().SerializeToString()[:-cut])


def test_graphs_nested_without_end_are_malformed() -> None:
    graph = b""
    for _ in range(200):
        attribute = _field(6, graph)
        graph = _field(1, _field(5, attribute))
    with pytest.raises(MalformedError, match="nested"):
        read_onnx(_field(7, graph))


def _field(number: int, content: bytes) -> bytes:
    size, length = len(content), b""
    while size > 127:
        length += bytes([size & 127 | 128])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + content


# XGBoost's binary files: accepted whole, and refused where anything is left over or missing.

STORE = np.load(Path(__file__).parents[2] / "convert/tests/trees/data/models.npz")
FILES = sorted(name.removesuffix("/file") for name in STORE.files if name.endswith("/file"))
MODEL = bytes(STORE["xgb-categories-100.ubj/file"])


@pytest.mark.parametrize("name", FILES)
def test_models_of_trees_are_accepted(name: str) -> None:
    found = detect("model.bin", bytes(STORE[f"{name}/file"]))
    assert found is (Format.XGBOOST if name.endswith(".ubj") else Format.TEXT)
    assert found in ACCEPTED


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (MODEL + b"\0", "1 bytes follow the model of XGBoost"),
        (MODEL[:-1], "begins as a model of XGBoost, and byte"),
        (MODEL[:5000], "begins as a model of XGBoost, and byte"),
        (MODEL.replace(b"[$d#", b"[$Z#", 1), "begins as a model of XGBoost, and byte"),
        (b"{U\7learner[#L" + b"\x7f" + b"\xff" * 7, "begins as a model of XGBoost, and byte"),
        (b"{U\7learnerSL" + b"\xff" * 8 + b"}", "begins as a model of XGBoost, and byte"),
        (b"{U\7learnerSL" + b"\xff" * 8, "begins as a model of XGBoost, and byte"),
        (b"{U\7learner" + b"[" * 100 + b"]" * 100 + b"}", "more than 32 in one another"),
    ],
)
def test_what_is_cut_off_or_has_more_in_it_is_refused(data: bytes, text: str) -> None:
    with pytest.raises(MalformedError, match=text):
        detect("1/model.ubj", data)


def test_another_object_is_not_one_of_xgboost() -> None:
    assert detect("model.ubj", b"{U\5othermU\1x\0") is Format.UNKNOWN
