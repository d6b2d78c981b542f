"""The logging extension over HTTP."""

import json
from collections.abc import Iterator
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
