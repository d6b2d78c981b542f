"""The agent keeps what every agent promises."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from repoagent_fetch.agent import FetchAgent

from repoagent.testing import AgentContract
from tests.file_server import FileServer

pytestmark = pytest.mark.slow

WEIGHTS = b"weights" * 1000


class TestContract(AgentContract):
    agent = FetchAgent
    entry_point = "fetch"
    readme = Path(__file__).parents[1] / "README.md"
    good_model = {"2/labels.txt": b"a"}
    bad_model = {"1/model.onnx": b"the source has it as well"}

    @pytest.fixture(autouse=True)
    def _server(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        with FileServer({"/model.onnx": WEIGHTS}) as server:
            monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", server.host)
            monkeypatch.setenv("NO_PROXY", "127.0.0.1")
            self.url = f"{server.url}/model.onnx"
            yield

    @property
    def parameters(self) -> tuple[tuple[str, str], ...]:
        return (("url", self.url), ("digest", f"model.onnx=sha256:{hashlib.sha256(WEIGHTS).hexdigest()}"))
