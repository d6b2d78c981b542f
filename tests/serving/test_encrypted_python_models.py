"""A Python model whose code lies encrypted in the repository, with the agent that decrypts it."""

from pathlib import Path

import numpy as np
import pyrage
import pytest

from repoagent.serving.core import ControlMode, CoreOptions, ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor

pytestmark = pytest.mark.slow

CODE = b"""
import triton_python_backend_utils as pb_utils
from .helper import FACTOR

class TritonPythonModel:
    def execute(self, requests):
        arrays = [request.inputs()[0].as_numpy() * FACTOR for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", array)]) for array in arrays]
"""
CONFIG = """
backend: "python"
input { name: "x" data_type: TYPE_FP32 dims: [2] }
output { name: "y" data_type: TYPE_FP32 dims: [2] }
parameters { key: "EXECUTION" value { string_value: "%s" } }
model_repository_agents { agents [ { name: "decrypt" parameters { key: "identity" value: "env:TEST_IDENTITY" } } ] }
"""


@pytest.mark.parametrize("execution", ["in-process", "process"])
def test_the_code_of_a_model_can_be_encrypted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, execution: str) -> None:
    identity = pyrage.x25519.Identity.generate()
    monkeypatch.setenv("TEST_IDENTITY", str(identity))
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True)
    for name, code in {"model.py": CODE, "helper.py": b"FACTOR = 3\n"}.items():
        (version / f"{name}.age").write_bytes(pyrage.encrypt(code, [identity.to_public()]))
    (version.parent / "config.pbtxt").write_text(CONFIG % execution)
    options = CoreOptions(
        repositories=(str(tmp_path / "models"),),
        control_mode=ControlMode.EXPLICIT,
        repoagent_directory=None,
        workspace_directory=tmp_path / "workspace",
        cache_directory=tmp_path / "cache",
        allow_swap=True,
    )
    with ServingCore(options) as core:
        core.load("m")
        answer = core.infer(InferRequest(Asked("m", {"x": Tensor.of(np.array([1, 2], np.float32))})))
        assert answer.outputs["y"].array.tolist() == [3, 6]
    assert not list((tmp_path / "workspace").rglob("*.py"))
