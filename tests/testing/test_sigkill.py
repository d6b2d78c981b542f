"""SIGKILL at named points of a confidential load: after the next start nothing of it is left.

The model arrives checksummed and encrypted; the chain is checksum (what arrived), decrypt, checksum (what came out),
convert. A marker is planted in the weights, so that it survives the conversion and shows wherever plaintext is.
"""

import hashlib
import io
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from onnx import helper, numpy_helper
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity
from repoagent_decrypt.age.writer import encrypt_stream

from repoagent.testing import KillHarness, ModelRepo
from repoagent.testing.killing import Child
from tests.onnx_models import floats, model_bytes

MARKER = b"planted in the weights: nobody may find this after a restart !!!"
IDENTITY = X25519Identity.generate()

# Where the process dies, and whether plaintext lies in memory at that moment.
LOCAL = {
    "storage start": False,
    "after storage process directory": False,
    "storage snapshot file": False,
    "after storage snapshot": False,
    "checksum LOAD": False,
    "after checksum LOAD": False,
    "decrypt model_initialize": False,
    "after decrypt key": False,
    "after decrypt acquire_location": False,
    "decrypt progress": True,
    "decrypt update_location": True,
    "after decrypt LOAD": True,
    "checksum LOAD #2": True,
    "convert LOAD": True,
    "convert conversion": True,
    "after convert acquire_location": True,
    "convert write_config": True,
    "after convert update_location": True,
    "convert LOAD_COMPLETE": True,
    "after checksum LOAD_COMPLETE #2": True,
    "decrypt UNLOAD": True,
    "checksum UNLOAD_COMPLETE #2": True,
    "storage workspace close": True,
    "storage remove entry #3": True,
}
REMOTE = {
    "storage download part": False,
    "after storage download check": False,
    "storage cache build": False,
    "storage cache publish": False,
    "storage cache sync": False,
    "storage cache sync directory": False,
    "after storage cache build": False,
    "after decrypt LOAD": True,
    "convert conversion": True,
    "storage workspace close": True,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    plain = onnx_model()
    sealed = io.BytesIO()
    encrypt_stream(io.BytesIO(plain), sealed, [IDENTITY.recipient], threads=1)
    return ModelRepo(tmp_path_factory.mktemp("repository")).add(
        "secret",
        {"1/model.onnx.age": sealed.getvalue()},
        agents=[
            ("checksum", {"SHA256:1/model.onnx.age": hashlib.sha256(sealed.getvalue()).hexdigest()}),
            ("decrypt", {"identity": "env:KILL_TEST_IDENTITY"}),
            ("checksum", {"SHA256:1/model.onnx": hashlib.sha256(plain).hexdigest()}),
            ("convert", {"level": "basic"}),
        ],
    )


def onnx_model() -> bytes:
    """y = x @ W; the bytes of W are the marker."""
    weights = np.frombuffer(MARKER, "float32").reshape(4, 4)
    node = helper.make_node("MatMul", ["x", "W"], ["y"])
    return model_bytes([node], floats("x"), floats("y"), [numpy_helper.from_array(weights, "W")])


@pytest.fixture
def killed(tmp_path: Path, kill_child: Child) -> Iterator[KillHarness]:
    environment = {"KILL_TEST_IDENTITY": str(IDENTITY.export())}
    with KillHarness(tmp_path / "killed", kill_child, environment=environment) as harness:
        yield harness


def check_nothing_is_left(killed: KillHarness) -> None:
    assert killed.holding(MARKER) == []
    assert killed.holding(IDENTITY.export().encode()) == []
    assert killed.left_over() == []
    assert killed.cache_faults() == []
    assert killed.held_locks() == []


@pytest.mark.slow
@pytest.mark.parametrize("point", LOCAL)
def test_a_kill_leaves_no_plaintext_after_the_next_start(killed: KillHarness, model: Path, point: str) -> None:
    killed.kill(model, point)
    found = killed.holding(MARKER)
    assert bool(found) is LOCAL[point]
    assert all(path.is_relative_to(killed.memory) for path in found), "plaintext was on a disk"
    killed.restart()
    check_nothing_is_left(killed)


@pytest.mark.slow
@pytest.mark.parametrize("point", REMOTE)
def test_a_kill_of_a_remote_load_leaves_no_plaintext_and_a_whole_cache(
    killed: KillHarness, model: Path, point: str
) -> None:
    killed.kill(model, point, remote=True)
    found = killed.holding(MARKER)
    assert bool(found) is REMOTE[point]
    assert all(path.is_relative_to(killed.memory) for path in found), "plaintext was on a disk"
    killed.restart()
    check_nothing_is_left(killed)
    killed.run(model, remote=True)
    check_nothing_is_left(killed)


def test_a_clean_up_that_is_killed_is_finished_by_the_next(killed: KillHarness, model: Path) -> None:
    killed.kill(model, "after convert LOAD")
    for entry in (1, 2, 4):
        killed.kill(model, f"storage remove entry #{entry}")
    killed.restart()
    check_nothing_is_left(killed)


def test_a_load_that_nobody_kills_leaves_nothing_either(killed: KillHarness, model: Path) -> None:
    assert "after convert LOAD" in killed.run(model)
    check_nothing_is_left(killed)
