"""The programs on the page about embedding are run as they stand there."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import tritonclient.grpc
import tritonclient.http
from fastapi.testclient import TestClient

from repoagent.server import Server

_TREE = Path(__file__).resolve().parents[2]
_PROGRAMS: list[str] = re.findall(
    r"^```python[^\n]*\n(.*?)^```$",
    (_TREE / "docs" / "reference" / "server-api.md").read_text(encoding="utf-8"),
    re.MULTILINE | re.DOTALL,
)


def _program(name: str) -> str:
    (program,) = [text for text in _PROGRAMS if name in text]
    return program


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A repository ``models`` in the current directory."""
    shutil.copytree(_TREE / "examples" / "digits" / "repository" / "digits", tmp_path / "models" / "digits")
    monkeypatch.chdir(tmp_path)
    yield tmp_path / "models"
    sys.modules.pop("app", None)


def test_three_lines_serve_http_grpc_and_metrics(models: Path) -> None:
    program = _program("KServeHttp")
    # The ports of the page may be taken here; where the front ends are is asked for instead.
    seen: dict[str, Any] = {}
    for written, free in (
        ("KServeHttp(server, KServeHttp.Options(port=8000))", "KServeHttp(server, KServeHttp.Options(port=0)) as http"),
        ("KServeGrpc(server)", "KServeGrpc(server, KServeGrpc.Options(port=0)) as grpc"),
        ("Metrics(server)", "Metrics(server, Metrics.Options(port=0)) as metrics"),
        ("    ...\n", "    use(http, grpc, metrics)\n"),
    ):
        assert written in program
        program = program.replace(written, free)

    def use(http: Any, grpc: Any, metrics: Any) -> None:
        with tritonclient.http.InferenceServerClient("{}:{}".format(*http.address)) as client:
            seen["http"] = client.is_model_ready("digits")
        with tritonclient.grpc.InferenceServerClient("{}:{}".format(*grpc.address)) as client:
            seen["grpc"] = client.is_model_ready("digits")
        seen["metrics"] = httpx.get("http://{}:{}/metrics".format(*metrics.address)).status_code

    with Server(model_repository=str(models)) as server:
        exec(program, {"server": server, "use": use})
    assert seen == {"http": True, "grpc": True, "metrics": 200}


def test_the_application_of_the_page_serves_models_below_its_prefix(models: Path) -> None:
    names: dict[str, Any] = {}
    exec(_program("FastAPI"), names)
    with TestClient(names["app"]) as client:
        assert client.get("/triton/v2/models/digits/ready").status_code == 200
        assert client.get("/v2").status_code == 404
