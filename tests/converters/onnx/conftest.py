"""Small ONNX models."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from tests import onnx_models
from tests.onnx_models import floats, make_model


@pytest.fixture
def perceptron() -> "onnx.ModelProto":
    """See :func:`tests.onnx_models.perceptron`."""
    return onnx_models.perceptron()


@pytest.fixture
def convolution() -> "onnx.ModelProto":
    """Conv, BatchNormalization and Relu over x[n,3,16,16]: the batch norm can be folded into the convolution."""
    rng = np.random.default_rng(8)
    shapes = {"W": (16, 3, 3, 3), "scale": (16,), "bias": (16,), "mean": (16,), "var": (16,)}
    weights = [numpy_helper.from_array(rng.random(shape, "float32") + 0.1, name) for name, shape in shapes.items()]
    nodes = [
        helper.make_node("Conv", ["x", "W"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("BatchNormalization", ["a", "scale", "bias", "mean", "var"], ["b"]),
        helper.make_node("Relu", ["b"], ["y"]),
    ]
    ends = floats("x", shape=("n", 3, 16, 16)), floats("y", shape=("n", 16, 16, 16))
    return make_model(nodes, *ends, weights, opset=17, ir_version=8)


@pytest.fixture
def save(tmp_path: Path) -> Callable[..., Path]:
    """Save a model below ``tmp_path/source``, with its weights in the file ``data`` if that is given."""

    def call(model: "onnx.ModelProto", path: str = "1/model.onnx", data: str | None = None) -> Path:
        return onnx_models.save_model(model, tmp_path / "source" / path, data)

    return call
