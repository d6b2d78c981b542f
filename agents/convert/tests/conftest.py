"""A small ONNX model, and loads of it through the installed agent."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from repoagent.testing import AgentHarness, Outcome

Load = Callable[..., Outcome]


@pytest.fixture
def harness(tmp_path: Path) -> Iterator[AgentHarness]:
    with AgentHarness(tmp_path / "harness") as harness:
        yield harness


@pytest.fixture
def load(tmp_path: Path, harness: AgentHarness) -> Load:
    """``load(config, **parameters)``: the model ``tmp_path/source`` goes through ``convert``.

    With ``config=None`` the agent is named by an override, as the model has no configuration then.
    """

    def load(config: str = "max_batch_size: 8", **parameters: str) -> Outcome:
        given = " ".join(f'parameters {{ key: "{key}" value: "{value}" }}' for key, value in parameters.items())
        agents = f'model_repository_agents {{ agents [ {{ name: "convert" {given} }} ] }}'
        root = tmp_path / "source"
        root.mkdir(exist_ok=True)
        (root / "config.pbtxt").write_text(f"{config}\n{agents}\n")
        return harness.run(root)

    return load


@pytest.fixture
def perceptron() -> "onnx.ModelProto":
    """MatMul, Add, Relu and a needless Identity over x[n,8] -> y[n,4]: there is something to fuse and to remove."""
    rng = np.random.default_rng(7)
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype("float32"), name)
        for name, shape in (("W1", (8, 256)), ("B1", (256,)), ("W2", (256, 4)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "W1"], ["a"]),
        helper.make_node("Add", ["a", "B1"], ["b"]),
        helper.make_node("Relu", ["b"], ["c"]),
        helper.make_node("Identity", ["c"], ["d"]),
        helper.make_node("MatMul", ["d", "W2"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "perceptron",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 4])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Save a model below ``tmp_path/source``, with its weights in the file ``data`` if that is given."""

    def call(model: "onnx.ModelProto", path: str = "1/model.onnx", data: str | None = None) -> Path:
        target = tmp_path / "source" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = onnx.ModelProto.FromString(model.SerializeToString())
        if data is None:
            onnx.save(copy, target)
        else:
            onnx.save(copy, target, save_as_external_data=True, location=data, size_threshold=0)
        return target

    return call
