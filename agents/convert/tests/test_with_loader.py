"""The installed agent in a real loader: found by its entry point, run in a chain, with the real cache."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from repoagent.api import Agent, AgentModel
from repoagent.errors import AgentRefusedError
from repoagent.loader.discovery import AgentRegistry
from repoagent.loader.loader import Loader
from repoagent.storage.cache.cache import Cache
from repoagent.storage.repositories.sources import open_source
from repoagent.storage.workspaces.workspace import WorkspaceRoot

Save = Callable[..., Path]
CONFIG = 'max_batch_size: 8\nmodel_repository_agents { agents [ { name: "convert" PARAMETERS } ] }'


class SecretAgent(Agent):
    """Hands the model on in a confidential location, as one that decrypts does."""

    api_version = 1

    def load(self, model: AgentModel) -> None:
        target = model.acquire_location(confidential=True)
        (target / "1").mkdir()
        (target / "1" / "model.onnx").write_bytes((model.localize() / "1" / "model.onnx").read_bytes())
        model.update_location(target)


class Registry(AgentRegistry):
    """The installed agents, and one more."""

    def load(self, name: str) -> Any:
        return SecretAgent if name == "secret" else super().load(name)


@pytest.fixture
def loader(tmp_path: Path) -> Iterator[Loader]:
    with ExitStack() as stack:
        workspace = stack.enter_context(WorkspaceRoot(tmp_path / "workspace"))
        cache = stack.enter_context(Cache(tmp_path / "cache"))
        loader = Loader(Registry(None), workspace, cache)
        stack.callback(loader.close)
        yield loader


@pytest.fixture
def model(save: Save, perceptron: "onnx.ModelProto") -> Path:
    root = save(perceptron).parents[1]
    (root / "config.pbtxt").write_text(CONFIG.replace("PARAMETERS", ""))
    return root


def run(path: Path) -> Any:
    x = np.arange(16, dtype="float32").reshape(2, 8)
    return ort.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def test_the_optimised_model_is_what_the_server_loads(loader: Loader, model: Path, tmp_path: Path) -> None:
    chain = loader.load(open_source("m", str(model)))
    path = chain.files.local_path("1/model.onnx")
    assert "FusedGemm" in {node.op_type for node in onnx.load(path).graph.node}
    np.testing.assert_allclose(run(path), run(model / "1" / "model.onnx"), rtol=1e-5)
    assert chain.config is not None
    assert (chain.config.backend, chain.config.max_batch_size) == ("onnxruntime", 8)
    assert json.loads(chain.config.parameters["repoagent_convert"].string_value)["level"] == "extended"
    chain.complete()
    chain.unload()
    chain.unload_complete()
    assert not path.exists()


def test_the_second_load_takes_the_result_from_the_cache(loader: Loader, model: Path) -> None:
    notes: list[str] = []
    for _ in range(2):
        chain = loader.load(open_source("m", str(model)))
        notes += chain.report.entries[0].actions[0].notes
        chain.complete()
        chain.unload()
        chain.unload_complete()
    made = [note for note in notes if not note.startswith("private snapshot")]
    assert [note.rpartition(", ")[2] for note in made] == ["built", "from the cache"]


def test_a_changed_file_name_is_honoured(loader: Loader, model: Path) -> None:
    parameter = 'parameters { key: "keep_original" value: "true" }'
    (model / "config.pbtxt").write_text(CONFIG.replace("PARAMETERS", parameter))
    chain = loader.load(open_source("m", str(model)))
    assert chain.config is not None
    assert chain.config.default_model_filename == "model.optimized.onnx"
    assert chain.files.names("1") == ["model.onnx", "model.optimized.onnx"]
    chain.fail(RuntimeError("enough"))


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="needs a memory filesystem")
def test_what_comes_from_a_confidential_agent_is_never_kept(tmp_path: Path, model: Path) -> None:
    (model / "config.pbtxt").write_text(
        'model_repository_agents { agents [ { name: "secret" }, { name: "convert" } ] }'
    )
    with WorkspaceRoot(tmp_path / "workspace", allow_swap=True) as workspace, Cache(tmp_path / "cache") as cache:
        loader = Loader(Registry(None), workspace, cache)
        chain = loader.load(open_source("m", str(model)))
        path = chain.files.local_path("1/model.onnx")
        assert path.is_relative_to("/dev/shm")
        np.testing.assert_allclose(run(path), run(model / "1" / "model.onnx"), rtol=1e-5)
        assert [kept for kept in (tmp_path / "cache").rglob("*") if kept.suffix == ".onnx"] == []
        chain.complete()
        loader.close()


def test_a_broken_model_refuses_the_load_with_one_message(loader: Loader, model: Path) -> None:
    (model / "1" / "model.onnx").write_bytes(b"hello world, this is text")
    with pytest.raises(AgentRefusedError, match=r"^agent 'convert': 1/model.onnx is not an ONNX model"):
        loader.load(open_source("m", str(model)))
