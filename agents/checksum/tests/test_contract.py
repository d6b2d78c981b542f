"""The agent keeps what every agent promises."""

import hashlib
from pathlib import Path

import pytest
from repoagent_checksum.agent import ChecksumAgent

from repoagent.testing import AgentContract

pytestmark = pytest.mark.slow

WEIGHTS = b"weights" * 1000


class TestContract(AgentContract):
    agent = ChecksumAgent
    entry_point = "checksum"
    long_running = True
    parameters = (
        ("SHA256:1/model.onnx", hashlib.sha256(WEIGHTS).hexdigest()),
        ("manifest", "1/SHA256SUMS"),
        ("algorithm", "sha256"),
        ("ignore", "1/empty"),
    )
    good_model = {
        "1/model.onnx": WEIGHTS,
        "1/SHA256SUMS": f"{hashlib.sha256(WEIGHTS).hexdigest()}  model.onnx\n".encode(),
    }
    bad_model = {**good_model, "1/model.onnx": WEIGHTS[:-1] + b"x"}
    readme = Path(__file__).parents[1] / "README.md"
