"""Optimised models give the numbers of the original."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx.reference import ReferenceEvaluator

from repoagent.api import ConversionJob, ConversionPlan, ConversionSource, ModelConfig
from repoagent.converters.onnx import source
from repoagent.converters.onnx.optimized import Level, OptimizedConverter
from repoagent.errors import InvalidArgumentError, UnavailableError, UnsafePathError

Save = Callable[..., Path]


def plan(model: Path, *, config: ModelConfig | None = None, **options: str) -> ConversionPlan:
    source = ConversionSource(model.parent, model.name, f"1/{model.name}", config)
    return OptimizedConverter().plan(source, {"level": "extended", **options})


def build(model: Path, target: Path, **options: str) -> Mapping[str, Any]:
    settings = plan(model, config=None, **options).settings
    target.mkdir(exist_ok=True)
    OptimizedConverter().build(ConversionJob(model.parent, target, settings))
    return settings


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
    build(source, target, level=level.value, output="fast.onnx")
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
        build(source, tmp_path / level, level=level.value)
        domains[level] = {node.domain for node in onnx.load(tmp_path / level / "model.onnx").graph.node}
    assert domains == {Level.BASIC: {""}, Level.EXTENDED: {"", "com.microsoft"}}


def test_a_large_model_gets_external_weights(
    save: Save, perceptron: "onnx.ModelProto", monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not plan(save(perceptron)).settings["external"]
    monkeypatch.setattr(source, "_EXTERNAL_ABOVE", 1000)
    assert plan(save(perceptron)).settings["external"]


def test_a_model_that_onnx_runtime_refuses_is_named_without_private_paths(
    save: Save, tmp_path: Path, perceptron: "onnx.ModelProto"
) -> None:
    perceptron.graph.node[0].op_type = "NoSuchOperator"
    with pytest.raises(InvalidArgumentError) as caught:
        build(save(perceptron), tmp_path / "out")
    assert str(caught.value).startswith("cannot be optimised: ")
    assert "NoSuchOperator" in str(caught.value)
    assert str(tmp_path) not in str(caught.value)


def test_a_full_disk_is_named(
    save: Save, tmp_path: Path, perceptron: "onnx.ModelProto", monkeypatch: pytest.MonkeyPatch
) -> None:
    model, target = save(perceptron), tmp_path / "out"
    target.mkdir()
    (target / "fast.onnx").symlink_to("/dev/full")
    with pytest.raises(InvalidArgumentError, match=r"^cannot be optimised"):
        build(model, target, output="fast.onnx")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    with pytest.raises(UnavailableError) as caught:
        build(model, target, output="fast.onnx")
    needed = model.stat().st_size
    assert str(caught.value) == (
        f"no space for the optimised model: 0 bytes are free where it is written, the model has {needed}"
    )


def test_what_the_result_depends_on_is_in_the_plan(save: Save, perceptron: "onnx.ModelProto") -> None:
    made = plan(save(perceptron, data="weights.bin"))
    assert made.inputs == ("model.onnx", "weights.bin")
    assert made.tools == {"onnxruntime": ort.__version__}
    assert made.target.endswith("features " + made.target.rpartition(" ")[2])
    assert made == plan(save(perceptron, data="weights.bin"))


@pytest.mark.parametrize(("field", "value"), [("backend", "tensorrt"), ("platform", "pytorch_libtorch")])
def test_a_model_of_another_backend_is_refused(
    save: Save, perceptron: "onnx.ModelProto", field: str, value: str
) -> None:
    config = ModelConfig()
    setattr(config, field, value)
    with pytest.raises(InvalidArgumentError, match=f"the configuration has '{value}'"):
        plan(save(perceptron), config=config)


def test_options_are_checked(save: Save, perceptron: "onnx.ModelProto") -> None:
    with pytest.raises(InvalidArgumentError, match=r"'level': 'extend' is not a .*did you mean 'extended'\?"):
        plan(save(perceptron), level="extend")
    with pytest.raises(UnsafePathError, match=r"parameter 'output': '../x' is not a plain file name"):
        plan(save(perceptron), output="../x")
