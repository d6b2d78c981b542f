"""One hundredth of ``make soak``: see benchmarks/soak_core.py."""

import importlib.util
import logging
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak_core.py"


@pytest.fixture
def soak_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("soak_core", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak_core", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_mixed_requests_under_reloads_are_answered_once_and_rightly_and_nothing_is_left_behind(
    soak_module: ModuleType, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "repoagent")
    report = soak_module.soak(0.01, seed=0)
    assert report.faults == []
    assert report.requests == 10_000
    assert {"ok", "cancelled", "timed out", "failed"} <= set(report.outcomes)
    assert report.reloads > 0
