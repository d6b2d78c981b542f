"""Lists, metrics, ensembles, shared memory and loads of clients with rights for some models only."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpc_client
import tritonclient.http as http_client
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.handlers.inference import Served
from repoagent_server.http.api import api_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from tritonclient.utils import InferenceServerException

from server_stub.tests.access.conftest import Guarded, client, tables
from tests.waiting import until

FRAUD = {"x-api-key": "fraud-key"}
ROOT = {"x-api-key": "root-key"}
VISIBLE = {"fraud-all", "fraud-eu", "fraud-us"}


@pytest.fixture
def http(guarded: Guarded) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=guarded.http) as client:
        yield client


@pytest.fixture
def triton(guarded: Guarded) -> Iterator[Any]:
    with grpc_client.InferenceServerClient(guarded.grpc) as client:
        yield client


def test_lists_over_http_leave_out_other_models(http: httpx.Client) -> None:
    index = http.post("/v2/repository/index", headers=dict(FRAUD)).json()
    assert {entry["name"] for entry in index} == VISIBLE
    stats = http.get("/v2/models/stats", headers=dict(FRAUD)).json()["model_stats"]
    assert {entry["name"] for entry in stats} == VISIBLE
    assert {entry["name"] for entry in http.post("/v2/repository/index", headers=dict(ROOT)).json()} == {
        *VISIBLE,
        "shared",
    }
    listed = http.get("/v1/models", headers=dict(FRAUD)).json()
    assert listed["object"] == "list"
    assert "shared" not in json.dumps(listed)


def test_lists_over_grpc_leave_out_other_models(triton: Any) -> None:
    assert {entry.name for entry in triton.get_model_repository_index(headers=dict(FRAUD)).models} == VISIBLE
    stats = triton.get_inference_statistics(headers=dict(FRAUD)).model_stats
    assert {entry.name for entry in stats} == VISIBLE


def test_metrics_need_a_key_on_both_ports_unless_the_file_opens_one(guarded: Guarded, http: httpx.Client) -> None:
    rules = guarded.file.access.rules
    assert http.get("/metrics").status_code == 401
    assert http.get("/metrics", headers=dict(FRAUD)).status_code == 403
    assert http.get("/metrics", headers=dict(ROOT)).text == "page 1\n"
    assert httpx.get(f"{guarded.metrics}/metrics").status_code == 401
    try:
        guarded.file.access.replace(type(rules)(opened=frozenset({"metrics"})))
        assert httpx.get(f"{guarded.metrics}/metrics").text == "page 1\n"
        assert http.get("/metrics").status_code == 401
    finally:
        guarded.file.access.replace(rules)


def test_an_ensemble_needs_no_rights_for_its_steps(guarded: Guarded, triton: Any) -> None:
    tensor = np.ones((1, 4), np.float32)
    given = grpc_client.InferInput("X", [1, 4], "FP32")
    given.set_data_from_numpy(tensor)
    assert triton.infer("fraud-all", [given], headers=dict(FRAUD)).as_numpy("Y").tolist() == tensor.tolist()
    plain = grpc_client.InferInput("INPUT0", [1, 4], "FP32")
    plain.set_data_from_numpy(tensor)
    with pytest.raises(InferenceServerException, match="lacks the right 'infer' for model 'shared'"):
        triton.infer("shared", [plain], headers=dict(FRAUD))
    event = guarded.denied[-1]
    assert (event.client, event.right, event.model, event.protocol) == ("fraud", "infer", "shared", "grpc")
    assert event.route == "/inference.GRPCInferenceService/ModelInfer"


def test_a_request_that_came_before_is_no_way_past_the_check(guarded: Guarded, triton: Any) -> None:
    """Requests are recognised by their bytes: that of another client must not vouch for this one."""
    given = grpc_client.InferInput("INPUT0", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    for _ in range(3):
        triton.infer("shared", [given], headers=dict(ROOT))
        with pytest.raises(InferenceServerException, match="lacks the right"):
            triton.infer("shared", [given], headers=dict(FRAUD))
        with pytest.raises(InferenceServerException, match="needs a key"):
            triton.infer("shared", [given])


def test_a_head_that_came_before_is_no_way_past_the_check(guarded: Guarded) -> None:
    url = guarded.http.removeprefix("http://")
    given = http_client.InferInput("INPUT0", [1, 4], "FP32")
    given.set_data_from_numpy(np.ones((1, 4), np.float32))
    with http_client.InferenceServerClient(url) as triton:
        for _ in range(3):
            triton.infer("shared", [given], headers=dict(ROOT))
            with pytest.raises(InferenceServerException, match="lacks the right"):
                triton.infer("shared", [given], headers=dict(FRAUD))
            with pytest.raises(InferenceServerException, match="needs a key"):
                triton.infer("shared", [given])


def test_what_is_wrong_with_a_request_is_said_only_to_who_may_infer(guarded: Guarded, http: httpx.Client) -> None:
    wrong = {"inputs": [{"name": "none", "datatype": "FP32", "shape": [1], "data": [1]}]}
    assert "none" in http.post("/v2/models/shared/infer", json=wrong, headers=dict(ROOT)).text
    for body in (wrong, {"inputs": 7}):
        assert http.post("/v2/models/shared/infer", json=body, headers=dict(FRAUD)).status_code == 403


def test_loads_that_bring_a_configuration_need_the_right_for_all_models(guarded: Guarded, http: httpx.Client) -> None:
    guarded_eu = {"x-api-key": "eu-key"}
    body: dict[str, Any] = {"parameters": {"config": '{"platform": "ensemble"}'}}
    answer = http.post("/v2/repository/models/fraud-eu/load", json=body, headers=guarded_eu)
    assert (answer.status_code, "for all models" in answer.text) == (403, True)
    body = {"parameters": {"unload_dependents": True}}
    assert http.post("/v2/repository/models/fraud-eu/unload", json=body, headers=guarded_eu).status_code == 403
    assert http.post("/v2/repository/models/fraud-eu/load", headers=guarded_eu).status_code == 200


def test_loads_over_grpc_that_bring_a_configuration_need_the_right_for_all_models(triton: Any) -> None:
    with pytest.raises(InferenceServerException, match="for all models"):
        triton.load_model("fraud-eu", config='{"platform": "ensemble"}', headers={"x-api-key": "eu-key"})
    with pytest.raises(InferenceServerException, match="for all models"):
        triton.unload_model("fraud-eu", unload_dependents=True, headers={"x-api-key": "eu-key"})
    triton.load_model("fraud-eu", headers={"x-api-key": "eu-key"})


def test_shared_memory_of_others_cannot_be_named(guarded: Guarded, http: httpx.Client, objects: Any) -> None:
    objects.make("secret", 16, np.arange(4, dtype=np.float32).tobytes())
    body = {"key": objects.key("secret"), "offset": 0, "byte_size": 16}
    assert http.post("/v2/systemsharedmemory/region/r/register", json=body, headers=dict(ROOT)).status_code == 200
    place = {"shared_memory_region": "r", "shared_memory_byte_size": 16}
    asked = {"inputs": [{"name": "INPUT0", "datatype": "FP32", "shape": [1, 4], "parameters": place}]}
    try:
        for _ in range(2):
            assert http.post("/v2/models/fraud-eu/infer", json=asked, headers=dict(ROOT)).status_code == 200
            refused = http.post("/v2/models/fraud-eu/infer", json=asked, headers=dict(FRAUD))
            assert (refused.status_code, "shared memory" in refused.text) == (403, True)
            assert (guarded.denied[-1].client, guarded.denied[-1].right) == ("fraud", "manage")
    finally:
        http.post("/v2/systemsharedmemory/region/r/unregister", headers=dict(ROOT))


def test_both_hold_a_restricted_part_and_the_access_file(guarded: Guarded) -> None:
    restrictions = {Api.METADATA: Restriction("pass", b"word")}
    service = api_service(Served(guarded.core, access=guarded.file.access), restrictions=restrictions)
    front = HttpFrontend(Endpoint(port=0), service)
    front.start()
    try:
        with httpx.Client(base_url="http://{}:{}".format(*front.bind())) as http:
            statuses = [
                http.get("/v2/models/shared", headers=headers).status_code
                for headers in ({}, {"pass": "word"}, ROOT, {"pass": "word", **ROOT})
            ]
        assert statuses == [403, 401, 403, 200]
    finally:
        front.stop()


def test_a_token_names_its_subject_in_reports(guarded: Guarded, http: httpx.Client) -> None:
    guarded.write(*tables(guarded.issuer)[:-1], client("people", issuer="corp", models="fraud-*"))
    token = guarded.issuer.token(sub="al\nice")
    until(lambda: http.get("/v2/models/shared", headers={"authorization": f"Bearer {token}"}).status_code == 403)
    assert guarded.denied[-1].client == "people/al?ice"
    guarded.write(*tables(guarded.issuer))
    until(lambda: http.get("/v2/models/shared", headers={"authorization": f"Bearer {token}"}).status_code == 200)
