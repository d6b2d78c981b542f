"""The trace extension over HTTP."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from repoagent.serving.tracing.trace_settings import TraceSettings
from repoagent.serving.tracing.tracer import Tracer


@pytest.mark.parametrize(("kind", "file"), [("http trace without file", ""), ("http trace", "traces.json")])
def test_answers_as_triton_does(
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


@pytest.fixture
def triton_client(start: Any) -> Iterator[Any]:
    host, port = start().bind()
    with triton.InferenceServerClient(f"{host}:{port}") as client:
        yield client


def test_tritons_client_reads_and_changes_the_settings(core: Any, tmp_path: Path, triton_client: Any) -> None:
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
