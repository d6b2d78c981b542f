"""Real plans, and the models that they are built of."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from repoagent_llm.builder import Form, Precision, build

from examples.executor.synthetic import synthetic_checkpoint
from tests.engines import models
from tests.engines.builder.plans import BuildPlan, PlanShelf, need_tensorrt

CAPACITY = 65


@pytest.fixture(scope="session")
def build_plan(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuildPlan]:
    """``build_plan(model, config, **options)``: a plan of an ONNX file, built once per run of the tests.

    A test that asks for it is skipped where there is no TensorRT.
    """
    need_tensorrt()
    base = tmp_path_factory.getbasetemp()
    # Below a directory that the processes of pytest-xdist share.
    shelf = PlanShelf((base.parent if "popen" in base.name else base) / "plans")
    yield shelf
    shelf.close()


@pytest.fixture
def save(tmp_path: Path) -> Callable[[bytes], Path]:
    """``save(content)``: a model file in a version directory."""

    def save(content: bytes, name: str = "model.onnx") -> Path:
        path = tmp_path / "1" / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
        return path

    return save


@pytest.fixture
def digits() -> Path:
    """The example's model."""
    return Path(__file__).parents[3] / "examples" / "digits" / "model.onnx"


@pytest.fixture
def perceptron(save: Callable[[bytes], Path]) -> Path:
    """Batches of any size."""
    return save(models.matmul())


@pytest.fixture(scope="session")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``decoder(kind, precision, capacity)``: the graph of a small decoder of standard operators."""
    root = tmp_path_factory.mktemp("decoders")
    oracle = json.loads((Path(__file__).parents[3] / "llm" / "tests" / "data" / "oracle.json").read_text())

    def make(kind: str, precision: str = "fp32", capacity: int | None = CAPACITY) -> Path:
        checkpoint, folder = root / kind, root / f"{kind}-{precision}-{capacity}"
        if not checkpoint.exists():
            synthetic_checkpoint(checkpoint, kind, **oracle["models"][kind]["shape"])
        if not folder.exists():
            build(checkpoint, folder, form=Form.STD, precision=Precision(precision), capacity=capacity)
        return folder / "model.onnx"

    return make
