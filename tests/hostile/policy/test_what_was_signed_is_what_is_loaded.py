"""The owner replaces files between the look at them and their use, under a policy that demands a signature."""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from repoagent_verify.manifest import Serialization
from repoagent_verify.signing import Identity, sign

from agents.verify.tests.issuing import public_pem
from repoagent.serving.core import ServingCore
from repoagent.serving.requests.request import Asked, InferRequest
from repoagent.serving.requests.tensor import Tensor
from tests.hostile.conftest import Swap
from tests.hostile.policy.ground import Ground, refusal_of

POLICY = """
[[rule]]
models = ["*"]
before = [{ agent = "verify", parameters = { trust_root = "vendor" } }]
agents = []
trust_roots = { vendor = "vendor.pem" }
"""
CONFIG = b'backend: "onnxruntime" max_batch_size: 8\n'
Weights = Callable[[float], bytes]


@pytest.fixture
def core(ground: Ground, weights: Weights) -> ServingCore:
    key = ec.generate_private_key(ec.SECP256R1())
    (ground.path / "vendor.pem").write_bytes(public_pem(key))
    model = ground.write({"config.pbtxt": CONFIG, "1/model.onnx": weights(1)})
    ground.write({"model.sig": sign(model, Identity(key), Serialization(), signature="model.sig")})
    return ground.core(POLICY)


def served(core: ServingCore) -> float:
    answer = core.infer(InferRequest(Asked("m", {"x": Tensor.of(np.zeros((1, 4), np.float32))})))
    return float(answer.outputs["y"].array[0, 0])


def replace(path: Path, content: bytes) -> Callable[[], None]:
    def act() -> None:
        other = path.parent.parent / "other"
        other.write_bytes(content)
        os.replace(other, path)

    return act


def test_other_weights_before_they_are_read_are_refused(
    ground: Ground, core: ServingCore, weights: Weights, at_open: Swap
) -> None:
    at_open("model.onnx", replace(ground.repository / "m" / "1" / "model.onnx", weights(666)))
    assert "changed after signing: 1/model.onnx" in refusal_of(lambda: core.load("m"))


@pytest.mark.parametrize("name", ["1/model.onnx", "config.pbtxt", "1/model.py"])
def test_what_is_replaced_once_it_was_read_is_not_loaded(
    ground: Ground, core: ServingCore, weights: Weights, program: bytes, trap: Path, at_open: Swap, name: str
) -> None:
    """The signature is the last file of the copy that is verified."""
    content = {"1/model.onnx": weights(666), "config.pbtxt": b'backend: "python"\n', "1/model.py": program}[name]
    at_open("model.sig", replace(ground.repository / "m" / name, content))
    core.load("m")
    assert (served(core), trap.exists()) == (1.0, False)
    assert (ground.repository / "m" / name).read_bytes() == content


def test_a_link_to_the_outside_before_it_is_read_is_refused(
    ground: Ground, core: ServingCore, weights: Weights, at_open: Swap
) -> None:
    file = ground.repository / "m" / "1" / "model.onnx"
    outside = ground.path / "outside.onnx"
    outside.write_bytes(weights(1))

    def link() -> None:
        file.unlink()
        file.symlink_to(outside)

    at_open("model.onnx", link)
    assert refusal_of(lambda: core.load("m"))
    assert not core.model_ready("m")
