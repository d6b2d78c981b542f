"""Models with weights of eight bits stay close to the original, and are smaller."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

from repoagent.api import ConversionJob, ConversionPlan, ConversionSource
from repoagent.converters.onnx import int8
from repoagent.converters.onnx.int8 import Int8Converter
from repoagent.errors import InvalidArgumentError, UnsupportedError

Save = Callable[..., Path]


def plan(model: Path, **options: str) -> ConversionPlan:
    defaults = {name: one.default for name, one in Int8Converter.options.items() if one.default is not None}
    return Int8Converter().plan(ConversionSource(model.parent, model.name, "1/model.onnx"), {**defaults, **options})


def build(model: Path, target: Path, **options: str) -> Any:
    target.mkdir()
    settings = plan(model, **options).settings
    return Int8Converter().build(ConversionJob(model.parent, target, settings))


@pytest.mark.parametrize("options", [{}, {"weights": "uint8"}, {"per_channel": "true"}, {"reduce_range": "false"}])
@pytest.mark.parametrize("data", [None, "weights.bin"])
def test_the_result_is_close_and_a_fraction_of_the_size(
    options: dict[str, str], data: str | None, save: Save, perceptron: "onnx.ModelProto", tmp_path: Path
) -> None:
    source = save(perceptron, data=data)
    size = sum(path.stat().st_size for path in source.parent.iterdir())
    product = build(source, tmp_path / "out", **options)
    assert product.annotations == {"quantized_nodes": 2}
    assert sum(path.stat().st_size for path in (tmp_path / "out").iterdir()) < 0.6 * size
    for path in source.parent.iterdir():
        path.unlink()  # The result stands alone.
    x = np.random.default_rng(0).standard_normal((5, 8)).astype("float32")
    expected: Any = ReferenceEvaluator(perceptron).run(None, {"x": x})
    session = ort.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])
    found = session.run(None, {"x": x})[0]
    assert np.abs(found - expected[0]).max() < 0.05 * np.abs(expected[0]).max()


def test_seven_bits_are_taken_where_the_processor_adds_in_sixteen(
    save: Save, perceptron: "onnx.ModelProto", monkeypatch: pytest.MonkeyPatch
) -> None:
    for vnni in (True, False):
        monkeypatch.setattr(int8, "has_vnni", lambda vnni=vnni: vnni)
        assert plan(save(perceptron)).settings["reduce_range"] is not vnni
        assert plan(save(perceptron), reduce_range="true").settings["reduce_range"]


def test_a_model_with_nothing_to_round_is_refused(save: Save, tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 8])],
    )
    source = save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8))
    with pytest.raises(InvalidArgumentError, match="has no layer with weights that int8 makes smaller"):
        build(source, tmp_path / "out")


def test_what_cannot_be_quantised_is_refused_without_private_paths(
    save: Save, perceptron: "onnx.ModelProto", tmp_path: Path
) -> None:
    perceptron.graph.node[2].op_type = "NoSuchOperator"
    with pytest.raises(InvalidArgumentError, match=r"^cannot be quantised: .*NoSuchOperator") as caught:
        build(save(perceptron), tmp_path / "out")
    assert str(tmp_path) not in str(caught.value)


def test_without_onnx_the_refusal_names_what_to_install(
    save: Save, perceptron: "onnx.ModelProto", monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(int8, "find_spec", lambda _: None)
    with pytest.raises(UnsupportedError, match=r"int8 needs the package onnx; from a checkout: pip install"):
        plan(save(perceptron))


@pytest.mark.slow
def test_the_tool_needs_nothing_but_onnx() -> None:
    """Beside what ONNX Runtime itself needs: no sympy, no torch, no neural compressor."""
    program = """
import sys
heavy = {"sympy", "torch", "neural_compressor", "pandas", "matplotlib", "tensorflow"}
sys.modules.update(dict.fromkeys(heavy))
from onnxruntime.quantization import QuantType, quantize_dynamic
print("fine")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout == "fine\n", done.stderr
