"""The agent keeps what every agent promises. It must be installed where this runs, as its entry point is looked up."""

from pathlib import Path

from repoagent_sizelimit import SizeLimitAgent

from repoagent.testing import AgentContract


class TestContract(AgentContract):
    agent = SizeLimitAgent
    entry_point = "sizelimit"
    parameters = {"max_bytes": "1000"}
    good_model = {"1/model.onnx": bytes(500)}
    bad_model = {"1/model.onnx": bytes(1001)}
    readme = Path(__file__).parents[1] / "README.md"
