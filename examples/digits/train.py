"""Train the digit classifier of the example and write it as ONNX, with some test digits beside it.

Needs scikit-learn and onnx (``pip install scikit-learn onnx``). The results are shipped, so nobody has to run this::

    python examples/digits/train.py

The data are the 1,797 handwritten digits (8 x 8 pixels, values 0..16) that scikit-learn bundles; they come from the
UCI "Optical Recognition of Handwritten Digits" set (E. Alpaydin, C. Kaynak, CC BY 4.0).
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = Path(__file__).parent


def main() -> None:
    digits = load_digits()
    train_x, test_x, train_y, test_y = train_test_split(
        digits.data.astype(np.float32), digits.target, test_size=0.25, random_state=7, stratify=digits.target
    )
    model = MLPClassifier(hidden_layer_sizes=(64, 32), alpha=1e-3, max_iter=600, random_state=7)
    model.fit(train_x / 16.0, train_y)
    print(f"accuracy on {len(test_y)} digits held out: {model.score(test_x / 16.0, test_y):.4f}")
    onnx.save(to_onnx(model), HERE / "model.onnx")
    (HERE / "test_digits.json").write_text(json.dumps(one_of_each(model, test_x, test_y)) + "\n")


def one_of_each(model: MLPClassifier, pixels: np.ndarray, labels: np.ndarray) -> list[dict[str, Any]]:
    """The first digit held out of each class that the model gets right: the example is about serving a model, and a
    wrong answer must mean that the server, not the training, is at fault."""
    right = model.predict(pixels / 16.0) == labels
    first = [int(np.flatnonzero(right & (labels == label))[0]) for label in range(10)]
    return [{"label": int(labels[i]), "pixels": [int(value) for value in pixels[i]]} for i in first]


def to_onnx(model: MLPClassifier) -> onnx.ModelProto:
    """Gemm and Relu per layer, then probabilities (softmax) and the label (argmax); the batch dimension is free."""
    nodes = [helper.make_node("Div", ["pixels", "sixteen"], ["h0"])]
    weights = [numpy_helper.from_array(np.array(16.0, np.float32), "sixteen")]
    last = len(model.coefs_) - 1
    for i, (weight, bias) in enumerate(zip(model.coefs_, model.intercepts_, strict=True)):
        weights += [
            numpy_helper.from_array(weight.astype(np.float32), f"w{i}"),
            numpy_helper.from_array(bias.astype(np.float32), f"b{i}"),
        ]
        nodes.append(helper.make_node("Gemm", [f"h{i}", f"w{i}", f"b{i}"], [f"z{i}"]))
        if i < last:
            nodes.append(helper.make_node("Relu", [f"z{i}"], [f"h{i + 1}"]))
    nodes += [
        helper.make_node("Softmax", [f"z{last}"], ["probabilities"], axis=-1),
        helper.make_node("ArgMax", [f"z{last}"], ["label"], axis=-1, keepdims=1),
    ]
    graph = helper.make_graph(
        nodes,
        "digits",
        [helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["batch", 64])],
        [
            helper.make_tensor_value_info("label", TensorProto.INT64, ["batch", 1]),
            helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["batch", 10]),
        ],
        weights,
    )
    result = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(result)
    return result


if __name__ == "__main__":
    main()
