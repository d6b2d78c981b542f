"""SageMaker's routes."""

import json
from collections.abc import Callable
from typing import Any, Final

import httpx
import numpy as np
import pytest
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.http.hosting.sagemaker import SageMaker, SageMakerOptions

from repoagent.errors import InvalidArgumentError

Host = Callable[..., httpx.Client]

BINARY: Final = "application/vnd.sagemaker-triton.binary+json;json-header-size="
ASKED: Final = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}]}


def platform(model: str = "ident", **options: Any) -> SageMaker:
    return SageMaker(SageMakerOptions(**options), model)


def test_a_ping_and_an_invocation(host: Host) -> None:
    client = host(platform())
    assert client.get("/ping").status_code == 200
    answer = client.post("/invocations", json=ASKED)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["outputs"][0]["data"] == [1, 2]


def test_an_invocation_may_be_a_table(host: Host) -> None:
    client = host(platform(inference="invocations"))
    answer = client.post("/invocations", json={"instances": [[1, 2], [3, None]]})
    assert answer.json() == {"predictions": [[1, 2], [3, None]]}
    refused = client.post("/invocations", json=ASKED)
    assert (refused.status_code, refused.json()["error"]) == (
        400,
        "attempt to access JSON non-number as double: input 'INPUT0'",
    )


def test_binary_tensors_come_with_the_size_of_the_json_in_the_media_type(host: Host) -> None:
    head = json.dumps(
        {
            "inputs": [
                {"name": "INPUT0", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}},
            ],
            "outputs": [{"name": "OUTPUT0", "parameters": {"binary_data": True}}],
        }
    ).encode()
    body = head + np.array([3, 4], np.float32).tobytes()
    answer = host(platform()).post("/invocations", content=body, headers={"content-type": f"{BINARY}{len(head)}"})
    assert answer.status_code == 200, answer.text
    kind, _, size = answer.headers["content-type"].rpartition("=")
    assert (f"{kind}=", "inference-header-content-length" in answer.headers) == (BINARY, False)
    assert np.frombuffer(answer.content[int(size) :], np.float32).tolist() == [3, 4]
    assert json.loads(answer.content[: int(size)])["model_name"] == "ident"


@pytest.mark.parametrize(
    ("media_type", "message"),
    [
        (f"text/x; {BINARY}4", f"expect MIME type for binary data starts with '{BINARY}'"),
        (f"{BINARY}1000000", "inference header size should be in range (0, "),
        (f"{BINARY}-1", "inference header size should be in range (0, "),
    ],
)
def test_a_size_that_cannot_be_is_refused_as_in_triton(host: Host, media_type: str, message: str) -> None:
    answer = host(platform()).post("/invocations", json=ASKED, headers={"content-type": media_type})
    assert (answer.status_code, message in answer.json()["error"]) == (400, True), answer.text


def test_the_size_of_another_header_means_nothing(host: Host) -> None:
    answer = host(platform()).post("/invocations", json=ASKED, headers={"Inference-Header-Content-Length": "3"})
    assert answer.status_code == 200, answer.text


def test_other_methods_and_other_paths_lead_nowhere(host: Host) -> None:
    client = host(platform())
    assert client.get("/invocations").status_code == 405
    assert client.post("/ping").status_code == 405
    for path in ("/", "/v2", "/v2/models/ident/infer", "/v2/repository/models/ident/unload", "/ping/", "/models"):
        answer = client.post(path)
        assert (answer.status_code, answer.content) == (400, b""), path


def test_a_query_and_a_name_with_odd_characters_change_nothing(host: Host, core: Any) -> None:
    core.models["a/b?c %é"] = core.models["ident"]
    client = host(platform("a/b?c %é"))
    assert client.post("/invocations?x=/v2", json=ASKED).json()["model_name"] == "a/b?c %é"


@pytest.mark.parametrize(
    ("options", "asked"), [({"inference": "generate"}, "once"), ({"inference": "generate_stream"}, "stream")]
)
def test_an_invocation_can_be_a_generation(host: Host, options: dict[str, str], asked: str) -> None:
    answer = host(platform("ident", **options)).post("/invocations", json={"INPUT0": [5.0, 6.0]})
    assert answer.status_code == 200, answer.text
    text = answer.text.removeprefix("data: ") if asked == "stream" else answer.text
    assert json.loads(text)["OUTPUT0"] == [5.0, 6.0]


def test_what_is_restricted_is_restricted_here(host: Host) -> None:
    guards = {Api.INFERENCE: Restriction("key", b"secret"), Api.HEALTH: Restriction("key", b"other")}
    client = host(platform(), restrictions=guards)
    assert client.post("/invocations", json=ASKED).status_code == 403
    assert client.post("/invocations", json=ASKED, headers={"key": "secret"}).status_code == 200
    assert client.get("/ping").status_code == 403
    assert client.get("/ping", headers={"key": "other"}).status_code == 200


def test_a_page_of_another_site_is_refused(host: Host) -> None:
    answer = host(platform()).post("/invocations", json=ASKED, headers={"Origin": "http://evil.example"})
    assert answer.status_code == 403


def test_a_ping_is_about_readiness_unless_it_is_about_life(
    host: Host, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(core, "ready", lambda: False)
    assert host(platform()).get("/ping").status_code == 400
    assert host(platform(ping="live")).get("/ping").status_code == 200


def test_the_environment_names_model_operation_and_ping() -> None:
    environment = {
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "m",
        "SAGEMAKER_TRITON_INFERENCE_TYPE": "generate",
        "SAGEMAKER_TRITON_PING_MODE": "live",
    }
    assert SageMakerOptions.of(environment) == SageMakerOptions(model="m", inference="generate", ping="live")
    with pytest.raises(InvalidArgumentError, match="SAGEMAKER_TRITON_PING_MODE is 'no'; use ready, live"):
        SageMakerOptions.of({"SAGEMAKER_TRITON_PING_MODE": "no"})
