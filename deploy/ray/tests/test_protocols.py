"""Three replicas serve plain, encrypted and language models through both protocols, to NVIDIA's own clients."""

import json
import queue
from typing import Any, Final

import httpx
import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException

from deploy.ray.tests.kit import PATIENCE, TREE, App, World

_DIGITS: Final = ("digits", "digits_checked", "digits_secure")
_PROMPT: Final = "The lighthouse of Elmbrook"


@pytest.fixture(scope="module")
def app(world: World) -> App:
    for name in _DIGITS:
        world.copy(f"examples/digits/repository/{name}")
    world.copy("examples/chat/repository/elmbrook")
    return world.run(min_replicas=3, models_per_replica=4)


def _digits() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((TREE / "examples/digits/test_digits.json").read_text())
    return found


def _pixels(kind: Any, digit: dict[str, Any], **options: Any) -> Any:
    made = kind.InferInput("pixels", [1, 64], "FP32")
    made.set_data_from_numpy(np.array([digit["pixels"]], np.float32), **options)
    return made


def test_three_replicas_run(app: App) -> None:
    assert len(app.processes()) == 3
    assert app.all("ask", "ready") == [True] * 3


@pytest.mark.parametrize("model", _DIGITS)
def test_http_answers_for_plain_and_encrypted_models(app: App, model: str) -> None:
    with app.http() as client:
        for binary in (True, False):
            for digit in _digits():
                outputs = [tritonclient.http.InferRequestedOutput("label", binary_data=binary)]
                pixels = _pixels(tritonclient.http, digit, binary_data=binary)
                answer = client.infer(model, [pixels], outputs=outputs, request_id="7")
                assert answer.as_numpy("label")[0, 0] == digit["label"]
                assert answer.get_response()["id"] == "7"


@pytest.mark.parametrize("model", _DIGITS)
def test_grpc_answers_for_plain_and_encrypted_models(app: App, model: str) -> None:
    with app.grpc() as client:
        for digit in _digits():
            answer = client.infer(model, [_pixels(tritonclient.grpc, digit)], request_id="8")
            assert answer.as_numpy("label")[0, 0] == digit["label"]
            assert answer.get_response().id == "8"


def test_an_encrypted_model_went_through_its_agents(app: App) -> None:
    with app.http() as client:
        client.load_model("digits_secure")
    report = httpx.get(f"{app.url}/v2/repository/models/digits_secure/report", timeout=PATIENCE).json()
    assert [entry["agent"] for entry in report["entries"]] == ["checksum", "decrypt", "checksum", "convert"]


def test_compressed_bodies_pass(app: App) -> None:
    with app.http() as client:
        digit = _digits()[0]
        answer = client.infer(
            "digits",
            [_pixels(tritonclient.http, digit)],
            request_compression_algorithm="gzip",
            response_compression_algorithm="gzip",
        )
        assert answer.as_numpy("label")[0, 0] == digit["label"]


def test_a_table_of_pandas_is_answered_with_one(app: App) -> None:
    digit = _digits()[0]
    answer = httpx.post(
        f"{app.url}/v2/models/digits/invocations", json={"inputs": {"pixels": [digit["pixels"]]}}, timeout=PATIENCE
    )
    assert answer.status_code == 200, answer.text
    (row,) = answer.json()["predictions"]
    assert row["label"] in (digit["label"], [digit["label"]])
    refused = httpx.post(f"{app.url}/v2/models/digits/invocations", content=b"{", timeout=PATIENCE)
    assert refused.status_code == 400


def test_a_large_batch_passes_through_the_object_store(app: App) -> None:
    pixels = np.array([digit["pixels"] for digit in _digits()], np.float32)
    rows = np.resize(pixels, (32, 64))
    expected = None
    for kind, client in ((tritonclient.http, app.http()), (tritonclient.grpc, app.grpc())):
        with client as asked:
            made = kind.InferInput("pixels", [32, 64], "FP32")
            made.set_data_from_numpy(rows)
            labels = asked.infer("digits", [made]).as_numpy("label")
            expected = labels if expected is None else expected
            assert labels.shape == (32, 1)
            assert np.array_equal(labels, expected)


def test_health_metadata_and_configuration(app: App) -> None:
    for client in (app.http(), app.grpc()):
        with client as asked:
            assert asked.is_server_live()
            assert asked.is_server_ready()
            metadata = asked.get_model_metadata("digits")
            config = asked.get_model_config("digits")
            assert asked.is_model_ready("digits")
            assert not asked.is_model_ready("nosuch")
            name = metadata["name"] if isinstance(metadata, dict) else metadata.name
            most = config["max_batch_size"] if isinstance(config, dict) else config.config.max_batch_size
            assert (name, most) == ("digits", 32)
            server = asked.get_server_metadata()
            assert (server["name"] if isinstance(server, dict) else server.name) == "repoagent-ray"


def test_the_index_and_the_statistics_are_those_of_all_replicas(app: App) -> None:
    with app.http() as client:
        before = _successes(client)
        for digit in _digits()[:5]:
            client.infer("digits", [_pixels(tritonclient.http, digit)])
        assert _successes(client) == before + 5
        index = {entry["name"]: entry.get("state") for entry in client.get_model_repository_index()}
        assert set(index) == {*_DIGITS, "elmbrook"}
        assert index["digits"] == "READY"


def _successes(client: Any) -> int:
    stats = client.get_inference_statistics("digits")["model_stats"]
    return sum(int(entry["inference_stats"]["success"]["count"]) for entry in stats)


def test_loads_and_unloads_reach_every_replica(app: App) -> None:
    with app.grpc() as client:
        client.load_model("digits_checked")
        assert client.is_model_ready("digits_checked")
        client.unload_model("digits_checked")
        assert not client.is_model_ready("digits_checked")
        assert not any("digits_checked" in loaded for loaded in app.loaded())
        client.infer("digits_checked", [_pixels(tritonclient.grpc, _digits()[0])])
        assert client.is_model_ready("digits_checked"), "the next request loads it again"


def test_errors_have_the_status_and_text_of_one_server(app: App) -> None:
    with app.http() as client, pytest.raises(InferenceServerException) as http:
        client.infer("nosuch", [_pixels(tritonclient.http, _digits()[0])])
    assert (http.value.status(), http.value.message()) == ("404", "Request for unknown model: 'nosuch' is not found")
    with app.grpc() as client, pytest.raises(InferenceServerException) as grpc:
        client.infer("nosuch", [_pixels(tritonclient.grpc, _digits()[0])])
    assert grpc.value.status() == "StatusCode.NOT_FOUND"
    assert grpc.value.message() == "Request for unknown model: 'nosuch' is not found"
    wrong = tritonclient.http.InferInput("wrong", [1, 64], "FP32")
    wrong.set_data_from_numpy(np.zeros((1, 64), np.float32))
    with app.http() as client, pytest.raises(InferenceServerException, match="unexpected inference input 'wrong'"):
        client.infer("digits", [wrong])


def test_generate_answers_once_and_as_a_stream(app: App) -> None:
    url = f"{app.url}/v2/models/elmbrook"
    ask = {"text_input": _PROMPT, "max_tokens": 8, "temperature": 0.0, "exclude_input_in_output": True}
    once = httpx.post(f"{url}/generate", json=ask, timeout=PATIENCE)
    assert once.status_code == 200, once.text
    whole = once.json()["text_output"]
    assert whole
    with httpx.stream("POST", f"{url}/generate_stream", json={**ask, "stream": True}, timeout=PATIENCE) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line]
    assert len(events) > 1
    assert "".join(event["text_output"] for event in events) == whole


def test_a_stream_over_grpc_brings_tokens_as_they_come(app: App) -> None:
    got: queue.Queue[Any] = queue.Queue()
    with app.grpc() as client:
        client.start_stream(lambda result, error: got.put(error or result))
        text = tritonclient.grpc.InferInput("text_input", [1], "BYTES")
        text.set_data_from_numpy(np.array([_PROMPT.encode()], object))
        tokens = tritonclient.grpc.InferInput("max_tokens", [1], "INT32")
        tokens.set_data_from_numpy(np.array([8], np.int32))
        stream = tritonclient.grpc.InferInput("stream", [1], "BOOL")
        stream.set_data_from_numpy(np.array([True], bool))
        client.async_stream_infer("elmbrook", [text, tokens, stream], request_id="s", enable_empty_final_response=True)
        pieces = []
        while True:
            answer = got.get(timeout=PATIENCE)
            assert not isinstance(answer, Exception), answer
            response = answer.get_response()
            assert response.id == "s"
            if response.outputs:
                pieces.append(answer.as_numpy("text_output").ravel()[0])
            if response.parameters["triton_final_response"].bool_param:
                break
        client.stop_stream()
    assert len(pieces) > 1


def test_many_requests_of_one_stream_are_answered_each(app: App) -> None:
    got: queue.Queue[Any] = queue.Queue()
    digits = _digits()
    with app.grpc() as client:
        client.start_stream(lambda result, error: got.put(error or result))
        for number, digit in enumerate(digits):
            client.async_stream_infer("digits", [_pixels(tritonclient.grpc, digit)], request_id=str(number))
        answers = [got.get(timeout=PATIENCE) for _ in digits]
        client.async_stream_infer("nosuch", [_pixels(tritonclient.grpc, digits[0])], request_id="x")
        refusal = got.get(timeout=PATIENCE)
        client.stop_stream()
    labels = {int(answer.get_response().id): int(answer.as_numpy("label")[0, 0]) for answer in answers}
    assert labels == {number: digit["label"] for number, digit in enumerate(digits)}
    assert "unknown model: 'nosuch'" in str(refusal)


def test_health_for_probes_of_grpc(app: App) -> None:
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    with grpc.insecure_channel(app.cluster.grpc) as channel:
        answer = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=PATIENCE)
    assert answer.status == health_pb2.HealthCheckResponse.SERVING
