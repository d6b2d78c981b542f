"""Ordinary graphs are plain; what cannot be bounded is not."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from repoagent.onnx_files.graph import read_graph
from repoagent.onnx_files.shape_cost import is_plain
from tests.hostile.test_files_that_take_long_to_open import HOSTILE, copies, node, numbers
from tests.onnx_models import floats, make_model, perceptron

X = floats("x", shape=["N", 4])
Y: Any = [("y", TensorProto.FLOAT, None)]


def plain(model: Any) -> bool:
    return is_plain(read_graph(model.SerializeToString()))


def branch(name: str) -> Any:
    made = helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
    return helper.make_graph([node("Relu", "x", name)], name, [], [made])


def test_layers_are_plain() -> None:
    assert plain(perceptron())


def test_shapes_that_are_computed_as_pytorch_does_are_plain() -> None:
    nodes = [
        node("Shape", "x", "s"),
        node("Gather", "s zero", "n", axis=0),
        node("Unsqueeze", "n axis", "u"),
        node("Concat", "u four", "target", axis=0),
        node("Shape", "target", "k"),
        node("ConstantOfShape", "k", "ones"),
        node("Equal", "target ones", "same"),
        node("Where", "same ones target", "wanted"),
        node("Expand", "x wanted", "y"),
    ]
    assert plain(make_model(nodes, X, Y, [numbers("zero", 0), numbers("axis", [0]), numbers("four", [4])]))


def test_branches_are_plain() -> None:
    either = node("If", "c", "y", then_branch=branch("a"), else_branch=branch("b"))
    assert plain(make_model([either], [*X, ("c", TensorProto.BOOL, [])], Y))


@pytest.mark.parametrize("make", HOSTILE, ids=lambda make: make.__name__)
def test_what_has_no_bound_is_not(make: Callable[[], Any]) -> None:
    assert not plain(make())


def loop() -> Any:
    counted = helper.make_tensor_value_info("i", TensorProto.INT64, [])
    asked = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    answered = helper.make_tensor_value_info("d", TensorProto.BOOL, [])
    body = helper.make_graph([node("Identity", "c", "d")], "body", [counted, asked], [answered])
    return make_model([node("Loop", "m x", "y", body=body)], X, Y, [numbers("m", 1)])


def out_of_order() -> Any:
    return make_model([node("Relu", "a", "y"), node("Relu", "x", "a")], X, Y)


def many_nodes() -> Any:
    return make_model([node("Relu", "x", f"y{one}") for one in range(20_001)], X, Y)


def with_a_function() -> Any:
    model = make_model([node("Relu", "x", "y")], X, Y)
    opset = helper.make_opsetid("", 21)
    model.functions.append(helper.make_function("f", "F", ["a"], ["b"], [node("Relu", "a", "b")], [opset]))
    return model


def two_shapes_of_one_name() -> Any:
    """Initializers of the branches, of which the second would hide the first."""
    first, second = branch("a"), branch("b")
    first.initializer.append(numpy_helper.from_array(np.zeros(1000, "f4"), "w"))
    second.initializer.append(numpy_helper.from_array(np.zeros(1, "f4"), "w"))
    either = node("If", "c", "y", then_branch=first, else_branch=second)
    return make_model([either], [*X, ("c", TensorProto.BOOL, [])], Y)


@pytest.mark.parametrize("make", [copies, loop, out_of_order, many_nodes, with_a_function, two_shapes_of_one_name])
def test_what_is_not_judged_is_not_plain(make: Callable[[], Any]) -> None:
    assert not plain(make())


@pytest.mark.parametrize("content", [b"", b"no model", perceptron().SerializeToString()[:-3]])
def test_what_is_no_model_is_not_plain_or_has_no_nodes(content: bytes) -> None:
    assert is_plain(read_graph(content)) is (content == b"")
