"""The agent keeps what every agent promises."""

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from repoagent_convert.agent import ConvertAgent

from repoagent.testing import AgentContract

pytestmark = pytest.mark.slow


def onnx_model() -> bytes:
    """y = x @ W, small."""
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "W"], ["y"])],
        "contract",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        [numpy_helper.from_array(np.ones((4, 2), "float32"), "W")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


class TestContract(AgentContract):
    agent = ConvertAgent
    entry_point = "convert"
    long_running = True
    config = "max_batch_size: 8"
    parameters = {"level": "basic", "keep_original": "true", "input": "model.onnx"}
    good_model = {"1/model.onnx": onnx_model(), "1/labels.txt": b"zero\none\n"}
    bad_model = {"1/model.onnx": b"this is no ONNX model"}
    readme = Path(__file__).parents[1] / "README.md"
