"""The example's language model over HTTP and gRPC, as clients of tensorrtllm_backend and vllm_backend ask it."""

import json
import queue
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from repoagent_server import KServeGrpc, KServeHttp
from tritonclient.utils import InferenceServerException

from repoagent.server import Server

pytestmark = pytest.mark.slow

_EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "llm"
_PATIENCE = 120
_PROMPT = "47+85:"
_ANSWER = " 7+5=12, 4+8+1=13. 132"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("llm") / "repository"
    shutil.copytree(_EXAMPLE / "repository", repository, ignore=shutil.ignore_patterns("1"))
    built = [sys.executable, str(_EXAMPLE / "build.py"), str(repository)]
    subprocess.run(built, check=True, timeout=100, capture_output=True)
    plain = repository / "plain"
    shutil.copytree(repository / "sums", plain)
    with (plain / "config.pbtxt").open("a") as file:
        file.write("model_transaction_policy { decoupled: false }\nmax_batch_size: 8\n")
    with Server(model_repository=str(repository)) as server:
        yield server


@pytest.fixture(scope="module")
def http(server: Server) -> Iterator[httpx.Client]:
    with (
        KServeHttp(server, KServeHttp.Options(port=0)) as front,
        httpx.Client(base_url="http://{}:{}".format(*front.address), timeout=_PATIENCE) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def grpc(server: Server) -> Iterator[Any]:
    with (
        KServeGrpc(server, KServeGrpc.Options(port=0)) as front,
        triton.InferenceServerClient("{}:{}".format(*front.address)) as client,
    ):
        yield client


def _generate(http: httpx.Client, **body: Any) -> str:
    response = http.post("/v2/models/sums/generate", json={"text_input": _PROMPT, **body})
    assert response.status_code == 200, response.text
    text: str = response.json()["text_output"]
    return text


def _events(http: httpx.Client, **body: Any) -> list[dict[str, Any]]:
    asked = {"text_input": _PROMPT, "stream": True, **body}
    with http.stream("POST", "/v2/models/sums/generate_stream", json=asked) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def _input(name: str, value: Any, kind: str, shape: list[int]) -> Any:
    array = np.array([value], np.object_ if kind == "BYTES" else None).reshape(shape)
    types = {"INT32": np.int32, "BOOL": np.bool_, "BYTES": np.object_}
    tensor = triton.InferInput(name, shape, kind)
    tensor.set_data_from_numpy(array.astype(types[kind]))
    return tensor


def _inputs(*, stream: bool, max_tokens: int, shape: list[int], text: str = _PROMPT) -> list[Any]:
    return [
        _input("text_input", text.encode(), "BYTES", shape),
        _input("max_tokens", max_tokens, "INT32", shape),
        _input("stream", stream, "BOOL", shape),
    ]


def test_generate_and_generate_stream_say_the_same(http: httpx.Client) -> None:
    whole = _generate(http, max_tokens=30)
    assert whole == _PROMPT + _ANSWER
    events = _events(http, max_tokens=30, return_finish_reason=True)
    assert _PROMPT + "".join(event["text_output"] for event in events) == whole
    assert [event["finish_reason"] for event in events][-1] == "stop"


def test_the_wishes_of_both_kinds_of_clients_are_heard(http: httpx.Client) -> None:
    drawn = _generate(http, max_tokens=20, top_p=0.9, temperature=0.8, seed=3, bad_words="", stop_words="")
    said = json.dumps({"max_tokens": 20, "top_p": 0.9, "temperature": 0.8, "seed": 3})
    assert _generate(http, sampling_parameters=said) == drawn
    nested = {"stream": False, "max_tokens": 20, "top_p": 0.9, "temperature": 0.8, "seed": 3}
    assert _generate(http, parameters={**nested, "exclude_input_in_output": True}) == drawn.removeprefix(_PROMPT)


def test_a_grammar_is_followed(http: httpx.Client) -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0, "maximum": 99}},
        "required": ["age"],
        "additionalProperties": False,
    }
    text = _generate(
        http,
        max_tokens=100,
        exclude_input_in_output=True,
        guided_decoding_guide_type="json_schema",
        guided_decoding_guide=json.dumps(schema),
        bad_words=[" ", "\n", "\t", "\r"],  # Else a random model may never stop to write spaces.
    )
    assert 0 <= json.loads(text)["age"] <= 99


@pytest.mark.parametrize("path", ["generate", "generate_stream"])
def test_a_bad_value_is_a_client_error_with_the_executors_text(http: httpx.Client, path: str) -> None:
    response = http.post(f"/v2/models/sums/{path}", json={"text_input": "x", "temperature": -1.0})
    assert response.status_code == 400
    assert json.loads(response.text.removeprefix("data: ")) == {
        "error": "SamplingConfig.temperature must be >= 0, not -1"
    }


_UNSPEAKABLE = {"at once": "日{3}", "later": "12日"}


@pytest.mark.parametrize("guide", _UNSPEAKABLE.values(), ids=_UNSPEAKABLE)
@pytest.mark.parametrize("path", ["sums/generate", "sums/generate_stream", "plain/infer"])
def test_a_guide_that_no_token_spells_is_a_client_error(http: httpx.Client, path: str, guide: str) -> None:
    wishes = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": guide}
    body: dict[str, Any] = {"text_input": _PROMPT, **wishes}
    if path.endswith("infer"):
        tensors = [{"name": name, "shape": [1, 1], "datatype": "BYTES", "data": [text]} for name, text in body.items()]
        body = {"inputs": tensors}
    response = http.post(f"/v2/models/{path}", json=body)
    assert response.status_code == 400
    assert "choosing a token failed" in json.loads(response.text.removeprefix("data: "))["error"]


@pytest.mark.parametrize("guide", _UNSPEAKABLE.values(), ids=_UNSPEAKABLE)
def test_over_grpc_too_it_is_a_client_error(grpc: Any, guide: str) -> None:
    texts = {"text_input": _PROMPT, "guided_decoding_guide_type": "regex", "guided_decoding_guide": guide}
    with pytest.raises(InferenceServerException, match="choosing a token failed") as caught:
        grpc.infer("plain", [_input(name, text.encode(), "BYTES", [1, 1]) for name, text in texts.items()])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_after_the_first_piece_it_is_an_event(http: httpx.Client) -> None:
    guide = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "12日"}
    *pieces, last = _events(http, **guide)
    assert "".join(piece["text_output"] for piece in pieces) == "12"
    assert "choosing a token failed" in last["error"]


@pytest.mark.parametrize("path", ["sums/generate", "sums/generate_stream", "plain/infer"])
def test_a_request_without_a_prompt_is_a_client_error_that_names_it(http: httpx.Client, path: str) -> None:
    tensor = {"name": "max_tokens", "shape": [1, 1], "datatype": "INT32", "data": [3]}
    body = {"inputs": [tensor]} if path.endswith("infer") else {"max_tokens": 3}
    response = http.post(f"/v2/models/{path}", json=body)
    assert response.status_code == 400
    assert (
        "needs one of the inputs text_input, messages, input_ids"
        in json.loads(response.text.removeprefix("data: "))["error"]
    )


def test_over_grpc_a_request_without_a_prompt_is_a_client_error_that_names_it(grpc: Any) -> None:
    with pytest.raises(
        InferenceServerException, match=r"needs one of the inputs text_input, messages, input_ids"
    ) as caught:
        grpc.infer("plain", [_input("max_tokens", 3, "INT32", [1, 1])])
    assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_many_clients_at_once_get_what_each_gets_alone(http: httpx.Client) -> None:
    alone = {length: _generate(http, max_tokens=length) for length in range(1, 25)}
    got: dict[int, str] = {}

    def ask(length: int) -> None:
        got[length] = _generate(http, max_tokens=length)

    threads = [threading.Thread(target=ask, args=(length,)) for length in alone]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(_PATIENCE)
    assert got == alone


def test_a_client_that_goes_away_ends_its_request(http: httpx.Client) -> None:
    wishes = {"text_input": _PROMPT, "stream": True, "max_tokens": 200, "end_id": -1}
    with http.stream("POST", "/v2/models/sums/generate_stream", json=wishes) as response:
        next(response.iter_lines())
    assert _generate(http, max_tokens=3)


def test_a_grpc_stream_brings_pieces(grpc: Any, http: httpx.Client) -> None:
    answers: queue.Queue[Any] = queue.Queue()
    grpc.start_stream(lambda result, error: answers.put(error or result))
    inputs = _inputs(stream=True, max_tokens=25, shape=[1])
    grpc.async_stream_infer("sums", inputs, request_id="r", enable_empty_final_response=True)
    text, final = b"", False
    while not final:
        result = answers.get(timeout=_PATIENCE)
        response = result.get_response()
        assert response.id == "r"
        text += result.as_numpy("text_output").item()
        final = response.parameters["triton_final_response"].bool_param
    grpc.stop_stream()
    assert _PROMPT + text.decode() == _generate(http, max_tokens=25)


def test_a_model_with_batches_and_without_streams_answers_plain_calls(grpc: Any, http: httpx.Client) -> None:
    inputs = _inputs(stream=False, max_tokens=12, shape=[1, 1])
    result = grpc.infer("plain", inputs)
    assert result.as_numpy("text_output").shape == (1, 1)
    assert result.as_numpy("text_output").item().decode() == _generate(http, max_tokens=12)
    body = {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1, 1], "data": [_PROMPT]},
            {"name": "max_tokens", "datatype": "INT32", "shape": [1, 1], "data": [12]},
        ]
    }
    (output,) = http.post("/v2/models/plain/infer", json=body).json()["outputs"]
    assert output["data"] == [_generate(http, max_tokens=12)]


def test_in_process(server: Server, http: httpx.Client) -> None:
    inputs = {"text_input": [_PROMPT], "max_tokens": np.array([9], np.int32)}
    answers = list(server.model("sums").infer(inputs=inputs))
    (text,) = [answer.outputs["text_output"].to_string_array().item() for answer in answers]
    assert text == _generate(http, max_tokens=9)


def test_the_load_report_and_the_metrics_tell_of_the_cache(http: httpx.Client) -> None:
    response = http.post(
        "/v2/models/sums/generate",
        json={"text_input": _PROMPT},
        headers={"endpoint-load-metrics-format": "json"},
    )
    assert "kv_cache_utilization" in response.headers["endpoint-load-metrics"]
    metrics = http.get("/metrics")
    assert 'nv_trt_llm_kv_cache_block_metrics{model="sums",version="1",kv_cache_block_type="max"}' in metrics.text
