"""Routes beyond what the recording of Triton covers."""

import base64
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

_HEALTH = {
    "/v2/health/live": {"live": True},
    "/v2/health/ready": {"ready": True},
    "/v2/models/ident/ready": {"name": "ident", "ready": True},
}


@pytest.mark.parametrize("path", _HEALTH)
def test_health_is_a_status_and_json_for_clients_that_ask_for_it(client: httpx.Client, path: str) -> None:
    for accept in ("*/*", "text/html"):
        answer = client.get(path, headers={"Accept": accept, "Accept-Encoding": "identity"})
        assert (answer.status_code, answer.content) == (200, b"")
    assert client.get(path, headers={"Accept": "text/html, Application/JSON;q=0.9"}).json() == _HEALTH[path]
    assert client.get(path, headers={"Accept": "*/*", "Accept-Encoding": "gzip"}).json() == _HEALTH[path]  # KServe's


def test_a_server_that_is_not_ready_says_so(core: Any, client: httpx.Client) -> None:
    core.ready = lambda: False
    core.live = lambda: False
    assert client.get("/v2/health/ready").status_code == 400
    assert client.get("/v2/health/live").status_code == 400


def test_the_index_can_be_of_ready_models_only(core: Any, client: httpx.Client) -> None:
    client.post("/v2/repository/index", json={"ready": True})
    client.post("/v2/repository/index")
    assert core.calls == [("index", True), ("index", False)]


@pytest.mark.parametrize("parameters", [{"config": "{}"}, {"file:1/x": base64.b64encode(b"x").decode()}])
def test_a_load_with_contents_needs_the_operators_leave(
    core: Any, client: httpx.Client, parameters: dict[str, str]
) -> None:
    response = client.post("/v2/repository/models/ident/load", json={"parameters": parameters})
    assert response.status_code == 501
    assert "'--allow-load-parameters=true'" in response.json()["error"]
    assert not core.calls
    assert client.post("/v2/repository/models/ident/load", json={"parameters": {}}).status_code == 200


def test_contents_that_are_not_base64_are_refused(start: Any) -> None:
    host, port = start(allow_load_parameters=True).bind()
    url = f"http://{host}:{port}/v2/repository/models/ident/load"
    response = httpx.post(url, json={"parameters": {"config": "{}", "file:1/x": "@@@"}})
    assert response.status_code == 400
    assert response.json()["error"].startswith("the contents of 'file:1/x' are not valid base64")


def test_the_report_of_a_load_can_be_asked_for(client: httpx.Client) -> None:
    assert client.get("/v2/repository/models/ident/report").json() == {"model": "ident", "outcome": "loaded"}
    response = client.get("/v2/repository/models/nosuch/report")
    assert (response.status_code, response.json()["error"]) == (404, "no load of model 'nosuch' has been reported yet")


def test_the_receipt_of_a_load_can_be_asked_for(client: httpx.Client) -> None:
    for path in ("/v2/models/ident/attestation", "/v2/models/ident/versions/1/attestation"):
        assert client.get(path).json() == {"summary": {}, "details": {}}
    for path in ("/v2/models/nosuch/attestation", "/v2/models/ident/versions/7/attestation"):
        response = client.get(path)
        assert (response.status_code, response.json()["error"].split("'")[0]) == (404, "there is no receipt of model ")


def test_a_model_that_is_asked_whether_it_is_ready_holds_nobody_up(
    client: httpx.Client, core: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answer = threading.Event(), threading.Event()

    def model_ready(name: str, version: str = "") -> bool:
        asked.set()
        return answer.wait(60)

    monkeypatch.setattr(core, "model_ready", model_ready)
    monkeypatch.setattr(core, "asks_model", lambda name, version="": True)
    with ThreadPoolExecutor(1) as pool:
        ready = pool.submit(httpx.get, f"{client.base_url}/v2/models/digits/ready", timeout=60)
        assert asked.wait(60)
        assert client.get("/v2/health/live").status_code == 200
        answer.set()
        assert ready.result().json() == {"name": "digits", "ready": True}


def test_one_version_is_loaded_and_unloaded(core: Any, client: httpx.Client) -> None:
    assert client.post("/v2/repository/models/ident/versions/3/load").status_code == 200
    assert client.post("/v2/repository/models/ident/versions/3/unload").status_code == 200
    assert core.calls == [("load", "ident", None, None, 3), ("unload", "ident", False, 3)]
    assert client.post("/v2/repository/models/ident/versions/x/load").status_code == 404
    assert client.post("/v2/repository/models/ident/versions/99999999999999999999/load").status_code == 400
    assert client.get("/v2/repository/models/ident/versions/3/load").status_code == 405
    assert len(core.calls) == 2
