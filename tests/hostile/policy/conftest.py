"""The attacker's repository, the ways to load from it, and models of both kinds: weights and programs."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.hostile.policy.ground import ROADS, Ground, Road
from tests.onnx_models import floats, model_bytes
from tests.warm import Warm


@pytest.fixture
def ground(tmp_path: Path, warm: Warm) -> Iterator[Ground]:
    with ExitStack() as stack:
        yield Ground(tmp_path, stack, warm)


@pytest.fixture(params=ROADS, ids=lambda name: name.replace(" ", "-"))
def road(request: pytest.FixtureRequest) -> Road:
    return ROADS[request.param]


@pytest.fixture
def weights() -> Callable[[float], bytes]:
    """An ONNX model that adds a number to FP32[N,4]: which weights are served shows in the answer."""

    def make(value: float) -> bytes:
        constant = onnx.numpy_helper.from_array(np.full(4, value, np.float32), "b")
        return model_bytes([helper.make_node("Add", ["x", "b"], ["y"])], floats("x"), floats("y"), [constant])

    return make


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A file that exists as soon as code of a model has run."""
    return tmp_path / "code-of-the-model-ran"


@pytest.fixture
def program(trap: Path) -> bytes:
    """A ``model.py`` that springs the trap when it is imported, and could be served."""
    return f"""
import pathlib
pathlib.Path({str(trap)!r}).touch()

class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config):
        config.add_input({{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}})
        config.add_output({{"name": "y", "data_type": "TYPE_FP32", "dims": [4]}})
        config.set_max_batch_size(8)
        return config

    def execute(self, requests):
        return [None for _ in requests]
""".encode()
