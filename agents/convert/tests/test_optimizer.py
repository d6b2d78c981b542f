"""Optimised models give the numbers of the original."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator
from repoagent_convert.optimizer import Optimization
from repoagent_convert.options import Level

from repoagent.api import InvalidArgumentError, UnavailableError

Save = Callable[..., Path]


def outputs(path: Path, x: "np.ndarray[Any, Any]") -> "np.ndarray[Any, Any]":
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(path), options, ["CPUExecutionProvider"])
    result: np.ndarray[Any, Any] = session.run(None, {"x": x})[0]
    return result


@pytest.mark.parametrize("level", Level)
@pytest.mark.parametrize("data", [None, "weights.bin"])
@pytest.mark.parametrize(("name", "shape"), [("perceptron", (5, 8)), ("convolution", (2, 3, 16, 16))])
def test_the_result_computes_the_same_with_fewer_nodes(
    request: pytest.FixtureRequest,
    save: Save,
    tmp_path: Path,
    level: Level,
    data: str | None,
    name: str,
    shape: tuple[int, ...],
) -> None:
    model: onnx.ModelProto = request.getfixturevalue(name)
    source = save(model, data=data)
    target = tmp_path / "out"
    target.mkdir()
    Optimization(source, "1/model.onnx", "fast.onnx", level, external=data is not None).write_to(target)
    result = onnx.load(target / "fast.onnx", load_external_data=False)
    assert len(result.graph.node) < len(model.graph.node)
    assert sorted(path.name for path in target.iterdir()) == ["fast.onnx", *(["fast.onnx.data"] if data else [])]
    source.unlink()  # The result stands alone.
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal(shape).astype("float32")
        expected: Any = ReferenceEvaluator(model).run(None, {"x": x})
        np.testing.assert_allclose(outputs(target / "fast.onnx", x), expected[0], rtol=1e-4, atol=1e-4)


def test_basic_is_standard_onnx_and_extended_is_not(save: Save, tmp_path: Path, perceptron: "onnx.ModelProto") -> None:
    source = save(perceptron)
    domains = {}
    for level in (Level.BASIC, Level.EXTENDED):
        Optimization(source, "m", f"{level}.onnx", level, external=False).write_to(tmp_path)
        domains[level] = {node.domain for node in onnx.load(tmp_path / f"{level}.onnx").graph.node}
    assert domains == {Level.BASIC: {""}, Level.EXTENDED: {"", "com.microsoft"}}


def test_a_model_that_onnx_runtime_refuses_is_named_without_private_paths(
    save: Save, tmp_path: Path, perceptron: "onnx.ModelProto"
) -> None:
    perceptron.graph.node[0].op_type = "NoSuchOperator"
    source = save(perceptron)
    with pytest.raises(InvalidArgumentError) as caught:
        Optimization(source, "1/model.onnx", "model.onnx", Level.BASIC, external=False).write_to(tmp_path)
    assert str(caught.value).startswith("1/model.onnx cannot be optimised: ")
    assert "NoSuchOperator" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_full_disk_is_named(
    save: Save, tmp_path: Path, perceptron: "onnx.ModelProto", monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "fast.onnx").symlink_to("/dev/full")
    step = Optimization(save(perceptron), "1/model.onnx", "fast.onnx", Level.ALL, external=False)
    with pytest.raises(InvalidArgumentError, match=r"1/model\.onnx cannot be optimised"):
        step.write_to(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(UnavailableError) as caught:
        step.write_to(tmp_path)
    assert str(caught.value).startswith("1/model.onnx cannot be optimised: no room for the result (0 bytes are free")
