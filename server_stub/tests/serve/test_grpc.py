"""gRPC from a real child process: the same models as over HTTP, and the same end."""

import json
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


@pytest.fixture(scope="module")
def served(world: Any) -> Any:
    world.agent("noted")
    world.model("m", [("noted", {})])
    return world.start("--model-control-mode=explicit", "--load-model=m").wait_ready()


@pytest.fixture
def client(served: Any, world: Any) -> Any:
    place = json.loads((world.root / "ready-0.json").read_text())["grpc"]
    with triton.InferenceServerClient(f"{place['address']}:{place['port']}") as client:
        yield client


def ask(client: Any) -> list[float]:
    tensor = triton.InferInput("X", [1, 4], "FP32")
    tensor.set_data_from_numpy(np.array([[-1, 2, -3, 4]], np.float32))
    values: list[float] = client.infer("m", [tensor]).as_numpy("Y")[0].tolist()
    return values


def test_both_protocols_give_the_same_answer(served: Any, client: Any) -> None:
    assert ask(client) == served.answer("m") == [1.0, -2.0, 3.0, -4.0]


def test_metadata_config_index_and_statistics(client: Any) -> None:
    metadata = client.get_model_metadata("m")
    assert [(t.name, t.datatype, list(t.shape)) for t in metadata.inputs] == [("X", "FP32", [-1, 4])]
    config = client.get_model_config("m").config
    assert config.backend == "onnxruntime"
    assert config.model_repository_agents.agents[0].name == "noted"
    assert ("m", "READY") in [(m.name, m.state) for m in client.get_model_repository_index().models]
    ask(client)
    (statistics,) = client.get_inference_statistics("m").model_stats
    assert statistics.inference_count > 0
    assert statistics.inference_stats.success.ns > 0


def test_a_model_comes_and_goes_through_its_agents(client: Any, world: Any) -> None:
    client.unload_model("m")
    assert not client.is_model_ready("m")
    with pytest.raises(InferenceServerException, match="Request for unknown model: 'm' has no available versions"):
        ask(client)
    client.load_model("m")
    assert ask(client)
    assert world.calls("m")[-2:] == ["noted LOAD", "noted LOAD_COMPLETE"]


def test_a_wrong_request_has_tritons_status_and_text(client: Any) -> None:
    tensor = triton.InferInput("X", [1, 5], "FP32")
    tensor.set_data_from_numpy(np.zeros((1, 5), np.float32))
    with pytest.raises(InferenceServerException) as raised:
        client.infer("m", [tensor])
    assert raised.value.status() == "StatusCode.INVALID_ARGUMENT"
    assert "unexpected shape for input 'X' for model 'm'" in raised.value.message()
