"""Routes beyond what the recording of Triton covers."""

import base64
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.http as triton
from repoagent_server.http.api import metrics_service
from repoagent_server.http.frontend import Endpoint, HttpFrontend
from repoagent_server.program.logs import configure
from repoagent_server.program.options import LogOptions
from tritonclient.utils import InferenceServerException

from repoagent.server import LogLevel
from repoagent.server.logs import ServerLog, log_message
from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent.serving.tracing.tracer import Tracer

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


# The logging extension over HTTP.


@pytest.fixture
def triton_client(start: Any) -> Iterator[Any]:
    host, port = start().bind()
    with triton.InferenceServerClient(f"{host}:{port}") as client:
        yield client


def test_answers_as_triton_does(client: httpx.Client, log: ServerLog, recorded: dict[str, Any]) -> None:
    for case in recorded["http log"]:
        response = client.request(case["method"], case["path"], content=case["body"])
        assert (response.status_code, response.text) == (case["status"], case["response"]), case


def test_tritons_client_reads_and_changes_the_settings(triton_client: Any, log: ServerLog) -> None:
    changes = {"log_verbose_level": 2, "log_format": "ISO8601", "log_info": False}
    changed = triton_client.update_log_settings(changes)
    assert (
        changed
        == triton_client.get_log_settings()
        == {
            "log_file": "",
            "log_info": False,
            "log_warning": True,
            "log_error": True,
            "log_verbose_level": 2,
            "log_format": "ISO8601",
        }
    )
    with pytest.raises(InferenceServerException, match="log file location can not be updated"):
        triton_client.update_log_settings({"log_file": "elsewhere"})


def test_a_change_acts_on_the_next_line(client: httpx.Client, tmp_path: Path) -> None:
    path = tmp_path / "log"
    with configure(LogOptions(file=path)):
        client.post("/v2/logging", json={"log_info": False})
        log_message(LogLevel.INFO, "f", 1, "not wanted")
        client.post("/v2/logging", json={"log_verbose_level": 1, "log_format": "json"})
        log_message(LogLevel.VERBOSE, "f", 1, "wanted")
        assert client.get("/v2/logging").json()["log_file"] == str(path)
    assert [json.loads(line)["message"] for line in path.read_text().splitlines()] == ["wanted"]


def test_a_request_with_a_mistake_changes_nothing(client: httpx.Client, log: ServerLog) -> None:
    before = client.get("/v2/logging").json()
    response = client.post("/v2/logging", json={"log_info": False, "log_format": "no such format"})
    assert response.status_code == 503
    assert client.get("/v2/logging").json() == before


def test_a_level_that_no_integer_of_32_bits_holds_is_refused(client: httpx.Client, log: ServerLog) -> None:
    response = client.post("/v2/logging", json={"log_verbose_level": 2**31})
    assert response.status_code == 400
    assert response.json() == {"error": "'log_verbose_level' must be at most 2147483647, got: 2147483648"}
    assert log.verbose == 0


# The trace extension over HTTP.


@pytest.mark.parametrize(("kind", "file"), [("http trace without file", ""), ("http trace", "traces.json")])
def test_trace_settings_are_those_of_triton(
    core: Any, client: httpx.Client, recorded: dict[str, Any], kind: str, file: str
) -> None:
    core.tracer = Tracer(TraceSettings(file=file))
    for case in recorded[kind]:
        response = client.request(case["method"], case["path"], content=case["body"])
        expected = case["response"].replace(">= -1, got:-2", ">= -1, got: -2")  # as Triton writes it over gRPC
        assert (response.status_code, response.text) == (case["status"], expected), case


@pytest.mark.parametrize("name", ["trace_rate", "log_frequency"])
def test_a_negative_number_is_refused_where_triton_takes_its_complement(client: httpx.Client, name: str) -> None:
    response = client.post("/v2/trace/setting", json={name: "-1"})
    assert response.status_code == 400
    text = f"Unable to parse '{name}', value is out of range [ 0, 4294967295 ], got: -1"
    assert response.json() == {"error": text}


def test_tritons_client_reads_and_changes_the_trace_settings(core: Any, tmp_path: Path, triton_client: Any) -> None:
    core.tracer = Tracer(TraceSettings(file=str(tmp_path / "traces")))
    changes = {"trace_level": ["TIMESTAMPS"], "trace_rate": "1"}
    changed = triton_client.update_trace_settings(model_name="ident", settings=changes)
    assert changed == triton_client.get_trace_settings(model_name="ident")
    assert changed["trace_level"] == ["TIMESTAMPS"]
    assert triton_client.get_trace_settings()["trace_level"] == ["OFF"]
    assert core.tracer.sample("ident") is not None
    assert core.tracer.sample("addsub") is None
    cleared = triton_client.update_trace_settings(model_name="ident", settings=dict.fromkeys(changes))
    assert cleared == triton_client.get_trace_settings()
    with pytest.raises(InferenceServerException, match="Request for unknown model : nosuch"):
        triton_client.get_trace_settings(model_name="nosuch")


# The metrics page over HTTP.


def test_the_metrics_port_has_this_page_alone() -> None:
    front = HttpFrontend(Endpoint(port=0), metrics_service(lambda: "nv_inference_count 1\n"))
    front.start()
    host, port = front.bind()
    try:
        response: Any = httpx.get(f"http://{host}:{port}/metrics")
        assert response.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert "nv_inference_count" in response.text
        assert httpx.get(f"http://{host}:{port}/v2").status_code == 404
        assert httpx.post(f"http://{host}:{port}/metrics").status_code == 405
    finally:
        front.stop()
