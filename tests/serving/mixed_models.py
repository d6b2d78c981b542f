"""A repository of every kind of model, each of which doubles its input: what the soak tests serve."""

from pathlib import Path
from typing import Final

from onnx import TensorProto, helper

TENSORS: Final = (
    'input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] } output { name: "y" data_type: TYPE_FP32 dims: [-1, 4] } '
)

MODEL: Final = """
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.one(pb_utils.get_input_tensor_by_name(r, "x").as_numpy()) for r in requests]

    def one(self, x):
        BODY
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x * np.float32(2))])
"""

STREAM: Final = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
            sender = request.get_response_sender()
            for number in range(int(x[0, 0]) % 4):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("y", x * np.float32(2))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""


def double_onnx() -> bytes:
    """``y = x + x`` over FP32[N,4]."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["N", 4]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "graph", [x], [y])
    content: bytes = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10
    ).SerializeToString()
    return content


def write_model(repository: Path, name: str, content: str | bytes, settings: str = "") -> None:
    """An ONNX model (bytes) or a Python one (text)."""
    directory = repository / name / "1"
    directory.mkdir(parents=True)
    if isinstance(content, bytes):
        (directory / "model.onnx").write_bytes(content)
        (directory.parent / "config.pbtxt").write_text(f'backend: "onnxruntime" {TENSORS}{settings}')
    else:
        (directory / "model.py").write_text(content)
        (directory.parent / "config.pbtxt").write_text(f'backend: "python" {TENSORS}{settings}')


def python_model(body: str = "pass") -> str:
    """A Python model that does ``body``, one line, before it doubles its input ``x``."""
    return MODEL.replace("BODY", body)


def write_repository(repository: Path) -> None:
    """Every kind of model; each doubles its input."""
    write_model(repository, "onnx", double_onnx(), "instance_group { count: 2 }")
    write_model(repository, "moving", double_onnx())
    write_model(repository, "python", python_model())
    write_model(repository, "slow", python_model("time.sleep(0.0005)"), "instance_group { count: 2 }")
    write_model(repository, "faulty", python_model("assert x[0, 0] % 3, 'a fault made on purpose'"))
    write_model(repository, "stream", STREAM, "model_transaction_policy { decoupled: true }")
    for member in ("left", "right"):
        write_model(repository, member, double_onnx())
    write_model(repository, "half", python_model("x = x / np.float32(4)"))
    steps = (("left", "x", "a"), ("half", "a", "b"), ("right", "b", "y"))
    text = "".join(
        f'step {{ model_name: "{model}" model_version: -1 input_map {{ key: "x" value: "{given}" }} '
        f'output_map {{ key: "y" value: "{made}" }} }} '
        for model, given, made in steps
    )
    (repository / "ensemble").mkdir()
    (repository / "ensemble" / "config.pbtxt").write_text(
        f'platform: "ensemble" {TENSORS}ensemble_scheduling {{ {text} }}'
    )
