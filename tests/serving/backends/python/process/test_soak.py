"""A small part of ``make soak``: see benchmarks/soak_python.py."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[5] / "benchmarks" / "soak_python.py"


@pytest.fixture
def soak_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_python", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak_python", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_every_request_is_answered_once_and_rightly_while_processes_are_killed(
    soak_module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "repoagent")
    report = soak_module.soak(0.01, seed=0)
    assert report.faults == []
    assert report.requests == 1000
    assert report.kills > 0
    assert report.outcomes["ok"] > 0
