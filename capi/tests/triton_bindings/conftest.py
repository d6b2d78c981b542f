"""A repository of two models, and directories of their own for the servers over it."""

from pathlib import Path

import pytest
from onnx import TensorProto

from tests.server.conftest import ADD_SUB_CONFIG, IDENTITY_CONFIG, add_sub, identity, write_model


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("REPOAGENT_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """addsub and text."""
    root = tmp_path / "models"
    write_model(root, "addsub", add_sub(), ADD_SUB_CONFIG)
    write_model(root, "text", identity(TensorProto.STRING), IDENTITY_CONFIG.format(type="TYPE_STRING"))
    return root


@pytest.fixture
def add_sub_model() -> bytes:
    return add_sub()
