"""The agent keeps what every agent promises."""

from pathlib import Path

import pytest
from repoagent_verify.agent import VerifyAgent

from repoagent.testing import AgentContract

pytestmark = pytest.mark.slow

VECTORS = Path(__file__).parent / "contract"
WEIGHTS = (VECTORS / "model.onnx").read_bytes()


class TestContract(AgentContract):
    agent = VerifyAgent
    entry_point = "verify"
    long_running = True
    parameters = (("public_key", f"file:{VECTORS / 'key.pub'}"), ("directory", "1"))
    good_model = {"1/model.onnx": WEIGHTS, "1/model.sig": (VECTORS / "model.sig").read_bytes()}
    bad_model = {**good_model, "1/model.onnx": WEIGHTS[:-1] + b"x"}
    readme = Path(__file__).parents[1] / "README.md"
