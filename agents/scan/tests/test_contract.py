"""The agent keeps what every agent promises."""

import pickle
from pathlib import Path

import pytest
from repoagent_scan.agent import ScanAgent

from agents.scan.tests.making_models import onnx_model
from repoagent.testing import AgentContract

pytestmark = pytest.mark.slow


class TestContract(AgentContract):
    agent = ScanAgent
    entry_point = "scan"
    parameters = (("modelaudit", "off"),)
    good_model = {"1/model.onnx": onnx_model().SerializeToString()}
    bad_model = {**good_model, "1/model.pkl": pickle.dumps(print)}
    readme = Path(__file__).parents[1] / "README.md"
