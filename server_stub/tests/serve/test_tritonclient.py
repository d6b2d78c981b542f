"""Triton's own HTTP client, unmodified, against the real core: every call, every error, Triton's statuses and texts."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import onnx
import pytest
import tritonclient.http as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

if TYPE_CHECKING:
    from server_stub.tests.serve.conftest import Server, World


def _save(file: Path, nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, Any]) -> None:
    def info(tensors: dict[str, Any]) -> list[Any]:
        return [helper.make_tensor_value_info(name, kind, dims) for name, (kind, dims) in tensors.items()]

    graph = helper.make_graph(nodes, "graph", info(inputs), info(outputs))
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(file))


@pytest.fixture(scope="module", params=[1, 2], ids=["one process", "two workers"])
def server(world: "World", request: pytest.FixtureRequest) -> "Server":
    """A sample of what ``REPOAGENT_TEST_PROCESSES=2`` has every test of this folder do."""
    world.agent("agent")
    batch: Any = ["batch", 4]
    pair = {"INPUT0": (TensorProto.FLOAT, batch), "INPUT1": (TensorProto.FLOAT, batch)}
    nodes = [
        helper.make_node("Add", ["INPUT0", "INPUT1"], ["OUTPUT0"]),
        helper.make_node("Sub", ["INPUT0", "INPUT1"], ["OUTPUT1"]),
    ]
    results = {"OUTPUT0": (TensorProto.FLOAT, batch), "OUTPUT1": (TensorProto.FLOAT, batch)}
    for version in ("1", "3"):
        _save(world.models / "addsub" / version / "model.onnx", nodes, pair, results)
    world.configure("addsub", [("agent", {})], "max_batch_size: 8\nversion_policy { all {} }")
    text: Any = (TensorProto.STRING, ["batch", "count"])
    identity = [helper.make_node("Identity", ["IN"], ["OUT"])]
    _save(world.models / "text" / "1" / "model.onnx", identity, {"IN": text}, {"OUT": text})
    world.configure("text")
    flags = ("--load-model=addsub", "--load-model=text", "--allow-load-parameters=true", "--http-max-input-size=100000")
    return world.serve(*flags, f"--processes={request.param}")


@pytest.fixture
def client(server: "Server") -> Iterator[Any]:
    with server.triton() as client:
        yield client


def _input(name: str, values: Any, datatype: str = "FP32", *, binary: bool = True) -> Any:
    array = np.asarray(values, object if datatype == "BYTES" else {"FP32": np.float32, "INT32": np.int32}[datatype])
    tensor = triton.InferInput(name, list(array.shape), datatype)
    tensor.set_data_from_numpy(array, binary_data=binary)
    return tensor


def _pair(binary: bool = True, rows: int = 1) -> list[Any]:
    return [
        _input(name, np.full((rows, 4), value), binary=binary) for name, value in (("INPUT0", 5.5), ("INPUT1", 2.0))
    ]


def test_health_and_metadata(client: Any) -> None:
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("addsub")
    assert client.is_model_ready("addsub", "1")
    assert not client.is_model_ready("addsub", "2")
    assert not client.is_model_ready("nosuch")
    assert client.get_server_metadata()["name"] == "triton"
    assert {"binary_tensor_data", "model_repository", "statistics"} <= set(client.get_server_metadata()["extensions"])
    metadata = client.get_model_metadata("addsub")
    assert metadata["versions"] == ["1", "3"]
    assert metadata["platform"] == "onnxruntime_onnx"
    assert metadata["inputs"][0] == {"name": "INPUT0", "datatype": "FP32", "shape": [-1, 4]}
    assert client.get_model_metadata("text")["inputs"] == [{"name": "IN", "datatype": "BYTES", "shape": [-1, -1]}]


def test_the_config_is_completed_from_the_file_and_shows_the_agents(client: Any) -> None:
    config = client.get_model_config("addsub")
    assert config["max_batch_size"] == 8
    assert {entry["name"]: [int(dim) for dim in entry["dims"]] for entry in config["input"]} == {
        "INPUT0": [4],
        "INPUT1": [4],
    }
    assert config["model_repository_agents"]["agents"][0]["name"] == "agent"


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_inference_in_json_and_in_binary(client: Any, binary_in: bool, binary_out: bool) -> None:
    outputs = [triton.InferRequestedOutput(name, binary_data=binary_out) for name in ("OUTPUT0", "OUTPUT1")]
    result = client.infer("addsub", _pair(binary_in, rows=3), outputs=outputs, request_id="r1", model_version="1")
    assert result.get_response()["id"] == "r1"
    assert result.get_response()["model_version"] == "1"
    assert np.array_equal(result.as_numpy("OUTPUT0"), np.full((3, 4), 7.5, np.float32))
    assert np.array_equal(result.as_numpy("OUTPUT1"), np.full((3, 4), 3.5, np.float32))


def test_text_in_both_directions(client: Any) -> None:
    texts = [[b"a", "\u00e9\u4e16".encode(), b"", b"with\0nul", b"x" * 5000]]
    assert client.infer("text", [_input("IN", texts, "BYTES")]).as_numpy("OUT").tolist() == texts


def test_without_a_version_the_highest_answers_with_all_outputs_and_many_at_once(client: Any) -> None:
    running = [client.async_infer("addsub", _pair(rows=n % 8 + 1), request_id=str(n)) for n in range(32)]
    for number, request in enumerate(running):
        result = request.get_result()
        assert result.get_response()["id"] == str(number)
        assert result.get_response()["model_version"] == "3"
        assert result.as_numpy("OUTPUT0").shape == (number % 8 + 1, 4)
        assert {output["name"] for output in result.get_response()["outputs"]} == {"OUTPUT0", "OUTPUT1"}


def test_statistics_count_what_was_asked(client: Any) -> None:
    def successes() -> int:
        stats = client.get_inference_statistics("addsub", "1")["model_stats"]
        assert [(entry["name"], entry["version"]) for entry in stats] == [("addsub", "1")]
        return int(stats[0]["inference_stats"]["success"]["count"])

    before = successes()
    for _ in range(3):
        client.infer("addsub", _pair(), model_version="1")
    assert successes() == before + 3
    assert {entry["name"] for entry in client.get_inference_statistics()["model_stats"]} >= {"addsub", "text"}
    with pytest.raises(InferenceServerException, match="requested model 'nosuch' is not available") as error:
        client.get_inference_statistics("nosuch")
    assert error.value.status() == "400"


def test_index_load_and_unload(world: "World", client: Any) -> None:
    assert {"name": "plain"} in client.get_model_repository_index()
    client.load_model("plain")
    assert {"name": "plain", "version": "1", "state": "READY"} in client.get_model_repository_index()
    assert client.infer("plain", [_input("X", [[1, 2, 3, 4]])]).as_numpy("Y").tolist() == [[-1, -2, -3, -4]]
    client.unload_model("plain")
    entry = next(entry for entry in client.get_model_repository_index() if entry["name"] == "plain")
    assert entry == {"name": "plain", "version": "1", "state": "UNAVAILABLE", "reason": "unloaded"}
    client.unload_model("nosuch")
    with pytest.raises(
        InferenceServerException, match="failed to load 'nosuch', failed to poll from model repo"
    ) as error:
        client.load_model("nosuch")
    assert error.value.status() == "500"


def test_a_model_from_the_request_itself_goes_through_the_agents_of_its_configuration(
    world: "World", client: Any
) -> None:
    content = (world.models / "plain" / "1" / "model.onnx").read_bytes()
    config = (
        '{"backend": "onnxruntime", "max_batch_size": "4", "model_repository_agents": {"agents": [{"name": "agent"}]}}'
    )
    client.load_model("sent", config=config, files={"file:1/model.onnx": content})
    assert client.get_model_config("sent")["max_batch_size"] == 4
    assert client.infer("sent", [_input("X", [[1, 2, 3, 4]])]).as_numpy("Y").tolist() == [[-1, -2, -3, -4]]
    client.unload_model("sent")
    calls = ["model_initialize", "LOAD", "LOAD_COMPLETE", "UNLOAD", "UNLOAD_COMPLETE", "model_finalize"]
    assert world.calls("sent")[-len(calls) :] == [f"agent {call}" for call in calls]


@pytest.mark.parametrize(
    ("model", "version", "inputs", "outputs", "status", "text"),
    [
        ("nosuch", "", _pair(), None, "404", "Request for unknown model: 'nosuch' is not found"),
        ("addsub", "2", _pair(), None, "404", "Request for unknown model: 'addsub' version 2 is not found"),
        ("addsub", "one", _pair(), None, "404", "Not Found"),
        (
            "addsub",
            "",
            [_pair()[0], _input("OTHER", [[1, 2, 3, 4]])],
            None,
            "400",
            "unexpected inference input 'OTHER' for model 'addsub'",
        ),
        ("addsub", "", _pair()[:1], None, "400", "expected 2 inputs but got 1 inputs for model 'addsub'"),
        ("addsub", "", _pair(), "NONE", "400", "unexpected inference output 'NONE' for model 'addsub'"),
        (
            "addsub",
            "",
            [_pair()[0], _input("INPUT1", [[1, 2, 3]])],
            None,
            "400",
            "unexpected shape for input 'INPUT1' for model 'addsub'. Expected [-1,4], got [1,3]",
        ),
        (
            "addsub",
            "",
            [_pair()[0], _input("INPUT1", [[1, 2, 3, 4]], "INT32")],
            None,
            "400",
            "inference input 'INPUT1' data-type is 'INT32', but model 'addsub' expects 'FP32'",
        ),
        ("addsub", "", _pair(rows=9), None, "400", "batch-size must be <= 8 for 'addsub'"),
    ],
    ids=["model", "version", "version-text", "input", "too-few", "output", "shape", "type", "batch"],
)
def test_an_inference_that_does_not_fit_is_refused_with_tritons_text(
    client: Any, model: str, version: str, inputs: list[Any], outputs: str | None, status: str, text: str
) -> None:
    wanted = [triton.InferRequestedOutput(outputs)] if outputs else None
    with pytest.raises(InferenceServerException) as error:
        client.infer(model, inputs, model_version=version, outputs=wanted)
    assert text in error.value.message()
    assert error.value.status() == status
    assert client.infer("addsub", _pair()).as_numpy("OUTPUT0").tolist() == [[7.5] * 4]


@pytest.mark.parametrize(
    ("content", "headers", "status", "text"),
    [
        (b"A", {}, 500, "failed to parse the request JSON buffer: Invalid value. at 0"),
        (b"{", {}, 500, "failed to parse the request JSON buffer: Missing a name for object member. at 1"),
        (b"[]", {}, 500, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        (b'{"inputs": 7}', {}, 500, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        (b"\x00\xff garbage", {}, 500, "failed to parse the request JSON buffer: "),
        (b"", {}, 400, ""),
        (b"{}", {"Inference-Header-Content-Length": "many"}, 400, ""),
        (b"{}", {"Inference-Header-Content-Length": "500"}, 400, ""),
        (b"{}", {"Content-Encoding": "br"}, 501, "Unsupported compression type"),
    ],
)
def test_a_garbage_body_is_refused_with_tritons_status_and_text(
    server: "Server", content: bytes, headers: dict[str, str], status: int, text: str
) -> None:
    reply = server.http.post("/v2/models/addsub/infer", content=content, headers=headers)
    assert reply.status_code == status
    assert reply.json()["error"].startswith(text)
    assert reply.json()["error"]
    assert server.http.get("/v2/health/ready").status_code == 200


def test_an_oversized_body_is_refused_before_it_is_read(server: "Server", client: Any) -> None:
    with httpx.Client(base_url=server.http.base_url) as another:
        reply = another.post("/v2/models/text/infer", content=bytes(200_000))
    assert reply.status_code == 400
    assert "100000" in reply.json()["error"]
    assert "200000" in reply.json()["error"]
    with pytest.raises(InferenceServerException, match="100000"):
        client.infer("text", [_input("IN", [[b"x" * 150_000]], "BYTES")])
    assert client.is_server_ready()
