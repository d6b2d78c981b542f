"""The agent keeps what every agent promises."""

import io
from functools import cached_property
from pathlib import Path

import pytest
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.writer import encrypt_stream
from repoagent_decrypt.agent import DecryptAgent

from repoagent.testing import AgentContract

pytestmark = pytest.mark.slow

PLAINTEXT = b"a marker that is in the plaintext only" * 5000
IDENTITY = X25519Identity.generate()


def encrypted() -> bytes:
    target = io.BytesIO()
    encrypt_stream(io.BytesIO(PLAINTEXT), target, [IDENTITY.recipient], threads=1)
    return target.getvalue()


class TestContract(AgentContract):
    agent = DecryptAgent
    entry_point = "decrypt"
    long_running = True
    parameters = (("identity", "fake:model.key"), ("files", "*.age"))
    secrets = {"model.key": f"{IDENTITY.export()}\n".encode()}
    plaintext = PLAINTEXT[:38]
    readme = Path(__file__).parents[1] / "README.md"

    @cached_property
    def good_model(self) -> dict[str, bytes]:
        return {"1/model.onnx.age": encrypted(), "1/labels.txt": b"zero\none\n"}

    @cached_property
    def bad_model(self) -> dict[str, bytes]:
        return {"1/model.onnx.age": self.good_model["1/model.onnx.age"][:-1]}
