"""The examples in examples/embed do what they say."""

import importlib
import os
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

EMBED = Path(__file__).parents[1] / "examples" / "embed"


@pytest.fixture(autouse=True)
def _own_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPOAGENT_WORKSPACE", str(tmp_path / "workspace"))
    monkeypatch.setenv("REPOAGENT_CACHE", str(tmp_path / "cache"))


def test_the_script_recognises_digits(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EMBED / "script.py"), run_name="__main__")
    expected, answered = (line.partition(": ")[2].split(",") for line in capsys.readouterr().out.splitlines())
    assert len(expected) == len(answered) == 10
    assert sum(one != other for one, other in zip(expected, answered, strict=True)) <= 1


@pytest.mark.slow
def test_the_fastapi_application_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi", reason="pip install fastapi httpx")
    testclient: Any = pytest.importorskip("fastapi.testclient", reason="pip install fastapi httpx")
    monkeypatch.setenv("MODEL_REPOSITORY", str(EMBED.parent / "digits" / "repository"))
    monkeypatch.syspath_prepend(str(EMBED))
    monkeypatch.delitem(sys.modules, "fastapi_app", raising=False)
    fastapi_app = importlib.import_module("fastapi_app")

    with testclient.TestClient(fastapi_app.app) as client:
        assert {"name": "digits", "version": 1, "state": "READY"} in client.get("/models").json()
        answer = client.post("/digits", json={"pixels": [0.0] * 64})
        assert answer.status_code == 200
        assert 0 <= answer.json()["label"][0] <= 9
        assert client.post("/digits", json={"pixels": [0.0] * 3}).status_code == 422


def test_the_demo_and_the_server_install_what_they_need_and_no_more(tmp_path: Path) -> None:
    """U3: they installed all that the tests need, 1.5 GB, and printed nothing meanwhile."""
    make = shutil.which("make") or pytest.skip("make is not installed")
    variables = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    for target in ("demo", "serve"):
        command = [make, "--dry-run", target, f"VENV={tmp_path}/new", f"PYTHON={sys.executable}"]
        printed = subprocess.check_output(command, cwd=EMBED.parents[1], env=variables, text=True)
        assert "2 of 2: installing" in printed
        assert printed.count("pip install") == 1
        assert "dev]" not in printed


@pytest.mark.slow
def test_a_signed_model_of_xgboost_is_verified_converted_and_served(capsys: pytest.CaptureFixture[str]) -> None:
    for needed in ("onnx", "repoagent_convert", "repoagent_verify"):
        pytest.importorskip(needed)
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    main = runpy.run_path(str(EMBED.parent / "tables" / "run.py"))["main"]
    main(os.environ.get("REPOAGENT_TEST_ENVIRONMENT"))  # one with scikit-learn, skl2onnx and skops
    answered, *more, changed = capsys.readouterr().out.splitlines()
    assert answered == "boosted: [1, 0]"
    assert more in ([], ["forest: [1, 0]"])
    assert changed.endswith("agent 'verify': changed after signing: 1/model.ubj")


def test_the_pipelines_read_digits_and_leave_nothing_loaded(capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EMBED.parent / "pipelines" / "run.py"), run_name="__main__")
    answers = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    expected = answers["expected"].strip("[]").split(", ")
    for asked in ("pipeline", "vote"):
        answered = answers[asked].strip("[]").split(", ")
        assert sum(one != other for one, other in zip(expected, answered, strict=True)) <= 1
    assert answers["left"] == "[]"
