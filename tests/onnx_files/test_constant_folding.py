"""What opening a model computes has a bound, and ordinary models fold as they always did."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto, helper

from repoagent.errors import InvalidArgumentError
from repoagent.onnx_files import constant_folding
from repoagent.onnx_files.constant_folding import bound_folding
from repoagent.onnx_files.graph import read_graph
from tests.onnx_models import make_model

CAP = "optimization.constant_folding_max_output_size_in_bytes"
OFF = "optimization.disable_specified_optimizers"


class Options:
    """Takes what a ``SessionOptions`` would."""

    def __init__(self) -> None:
        self.entries: dict[str, str] = {}

    def add_session_config_entry(self, key: str, value: str) -> None:
        self.entries[key] = value


def entries(model: Any) -> dict[str, str]:
    options = Options()
    bound_folding(options, read_graph(model.SerializeToString()), "model.onnx")
    return options.entries


def chain(operator: str, length: int, shape: list[int], *more: str, reverse: bool = False, **attributes: Any) -> Any:
    """``operator`` over a constant of ``shape``, and over its own result, ``length`` times; one number is added."""
    nodes = [helper.make_node("ConstantOfShape", ["shape"], ["p0"])]
    nodes += [helper.make_node(operator, [f"p{i}", *more], [f"p{i + 1}"], **attributes) for i in range(length)]
    nodes += [
        helper.make_node("ReduceMax", [f"p{length}"], ["m"], keepdims=0),
        helper.make_node("Add", ["x", "m"], ["y"]),
    ]
    weights = [helper.make_tensor("shape", TensorProto.INT64, [len(shape)], shape)]
    one = ("x", TensorProto.FLOAT, [1])
    return make_model(nodes[::-1] if reverse else nodes, [one], [("y", TensorProto.FLOAT, [1])], weights)


def scaled(weights: int) -> Any:
    """A product with a transposed weight, as exporters write it."""
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"]),
        helper.make_node("MatMul", ["x", "t"], ["z"]),
        helper.make_node("Mul", ["z", "s"], ["y"]),
    ]
    tensors = [
        helper.make_tensor("w", TensorProto.FLOAT, [4, weights], [0.5] * 4 * weights),
        helper.make_tensor("s", TensorProto.FLOAT, [], [2.0]),
    ]
    ends = ("x", TensorProto.FLOAT, [1, weights]), ("y", TensorProto.FLOAT, [1, 4])
    return make_model(nodes, [ends[0]], [ends[1]], tensors)


def test_an_ordinary_model_folds_as_ever() -> None:
    assert entries(scaled(1000)) == {}


@pytest.mark.parametrize(
    ("model", "largest"),
    [
        (chain("Exp", 3000, [2000, 5000]), 1 << 18),
        (chain("Exp", 3000, [2000, 5000], reverse=True), 1 << 18),
        (chain("MatMul", 1, [16000, 16000], "p0"), 1 << 16),
        (chain("Softmax", 3, [20, 50]), 1 << 26),
    ],
    ids=["many steps", "in reverse order", "one large product", "few steps"],
)
def test_the_largest_folded_value_keeps_all_of_them_within_the_bounds(model: Any, largest: int) -> None:
    assert entries(model) == {CAP: str(largest)}


@pytest.mark.parametrize(
    "model",
    [
        chain("MatMul", 4000, [1500, 1500], "p0"),
        chain("Einsum", 1, [2] * 20, equation="abcdefghijklmnopqrst->"),
        chain("LpPool", 1, [1, 1, 200, 200], kernel_shape=[200, 200], pads=[199] * 4),
    ],
    ids=["too many products", "an operator without a bound", "another"],
)
def test_a_model_whose_work_has_no_bound_folds_nothing(model: Any) -> None:
    assert entries(model) == {OFF: "ConstantFolding"}


def test_nodes_inside_a_branch_count() -> None:
    model = chain("Exp", 1, [2])
    branch = helper.make_graph(
        [helper.make_node("Einsum", ["p0"], ["e"], equation="a->")],
        "branch",
        [],
        [helper.make_tensor_value_info("e", TensorProto.FLOAT, [])],
    )
    model.graph.node.append(helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch))
    assert entries(model) == {OFF: "ConstantFolding"}


def test_without_the_bound_of_the_runtime_only_what_needs_none_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constant_folding, "_runtime_version", lambda: (1, 26))
    assert entries(chain("Softmax", 3, [20, 50])) == {OFF: "ConstantFolding"}
    assert entries(scaled(10)) == {}


@pytest.mark.parametrize("content", [b"", b"ORTM\x00", b"\x3a\xff\xff\xff\xff\x0f", b"\x0b"])
def test_what_is_not_onnx_folds_nothing_and_is_left_to_the_runtime(content: bytes) -> None:
    options = Options()
    bound_folding(options, read_graph(content), "model.onnx")
    assert options.entries in ({}, {OFF: "ConstantFolding"})


def doubling(levels: int) -> Any:
    """Functions of ten calls each of the one below: ten to the power of ``levels`` nodes."""
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("d", 1)]
    functions = []
    for level in range(levels):
        name, domain = ("Identity", "") if level == 0 else (f"f{level - 1}", "d")
        body = [helper.make_node(name, ["a" if i == 0 else f"b{i}"], [f"b{i + 1}"], domain=domain) for i in range(10)]
        functions.append(helper.make_function("d", f"f{level}", ["a"], ["b10"], body, opsets))
    one = TensorProto.FLOAT, [1]
    model = make_model([helper.make_node(f"f{levels - 1}", ["x"], ["y"], domain="d")], [("x", *one)], [("y", *one)])
    model.functions.extend(functions)
    model.opset_import.append(opsets[1])
    return model


def test_functions_that_call_functions_have_a_limit() -> None:
    assert entries(doubling(3)) == {OFF: "ConstantFolding"}
    with pytest.raises(InvalidArgumentError, match=r"model\.onnx: its functions become more than 100,000 nodes"):
        entries(doubling(9))


def test_functions_that_call_themselves_are_left_to_the_runtime_or_refused() -> None:
    model = doubling(1)
    model.functions[0].node[0].op_type, model.functions[0].node[0].domain = "f0", "d"
    assert entries(model) == {OFF: "ConstantFolding"}  # one call a round: it never exceeds the bound


def test_files_that_no_exporter_writes_fold_nothing_or_have_a_bound() -> None:
    """A product of nothing, and a tensor of more bytes than a float counts."""
    nothing = chain("MatMul", 1, [4, 4])
    nothing.graph.node.append(helper.make_node("MatMul", [], ["z"]))
    assert set(entries(nothing)) == {CAP}
    huge = chain("MatMul", 1, [4, 4], "w")
    huge.graph.initializer.append(helper.make_tensor("w", TensorProto.FLOAT, [0], []))
    del huge.graph.initializer[-1].dims[:]
    huge.graph.initializer[-1].dims.extend([2**62] * 20)
    assert entries(huge) == {OFF: "ConstantFolding"}


OPEN = """
import resource, sys
import onnxruntime
from repoagent.onnx_files.constant_folding import bound_folding
from repoagent.onnx_files.graph import read_graph
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
content = open(sys.argv[1], "rb").read()
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
options.log_severity_level = 3
bound_folding(options, read_graph(content), "m")
onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
print("opened")
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "model",
    [
        chain("MatMul", 4000, [1500, 1500], "p0"),
        chain("Exp", 3000, [2000, 5000]),
        chain("Tile", 1, [64], "shape"),
        chain("MatMul", 1, [16000, 16000], "p0"),
    ],
    ids=["products", "steps", "tiles", "one product"],
)
def test_onnx_runtime_opens_them_within_a_limit_of_memory(model: Any, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    done = subprocess.run([sys.executable, "-c", OPEN, path], capture_output=True, text=True, timeout=200)
    assert done.stdout == "opened\n", done.stderr
