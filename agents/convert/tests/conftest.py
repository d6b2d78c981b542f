"""Small ONNX models, and a model of the server that the agent can be called with outside of one."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from repoagent.api import AgentModel, ModelConfig, Parameters, UnsupportedError

MakeModel = Callable[..., "onnx.ModelProto"]


@dataclass
class FakeCache:
    """Keeps results in directories; refuses everything when ``confidential``."""

    directory: Path
    confidential: bool = False
    keys: list[str] = field(default_factory=list)

    def get_or_build(self, key: str, build: Callable[[Path], None]) -> Path:
        if self.confidential:
            raise UnsupportedError("no cache in a confidential load")
        self.keys.append(key)
        path = self.directory / key
        if not path.exists():
            path.mkdir(parents=True)
            build(path)
        return path


@dataclass
class FakeModel:
    """The part of ``AgentModel`` that the agent uses; keeps what it is told."""

    source: Path
    target: Path
    cache: FakeCache
    parameters: Parameters = field(default_factory=Parameters)
    config: ModelConfig | None = field(default_factory=ModelConfig)
    name: str = "model"
    cancelled: bool = False
    location: Path | None = None
    size_hint: int | None = None
    written: ModelConfig | None = None
    reports: list[dict[str, Any]] = field(default_factory=list)

    def localize(self) -> Path:
        return self.source

    def acquire_location(self, *, confidential: bool = False, size_hint: int | None = None) -> Path:
        self.size_hint = size_hint
        self.target.mkdir()
        return self.target

    def update_location(self, location: Path) -> None:
        self.location = location

    def write_config(self, config: ModelConfig) -> None:
        self.written = config

    def progress(self, done: int, total: int | None = None, what: str = "") -> None:
        return None

    def report(self, **what: Any) -> None:
        self.reports.append(what)

    def as_model(self) -> AgentModel:
        return cast(AgentModel, self)


@pytest.fixture
def make_load(tmp_path: Path) -> Callable[..., FakeModel]:
    """Make a load of the model directory ``tmp_path/source``; several share one cache."""
    cache = FakeCache(tmp_path / "cache")
    count = iter(range(100))

    def make(*parameters: tuple[str, str], **attributes: Any) -> FakeModel:
        target = tmp_path / f"target{next(count)}"
        return FakeModel(tmp_path / "source", target, cache, Parameters(parameters), **attributes)

    return make


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
    graph = helper.make_graph(
        nodes,
        "convolution",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16, 16, 16])],
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
