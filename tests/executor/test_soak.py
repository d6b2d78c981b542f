"""One hundredth of ``make soak``: see benchmarks/soak_executor.py."""

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "soak_executor.py"


@pytest.fixture
def soak_module(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("soak_executor", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "soak_executor", module)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_every_request_is_answered_once_and_nothing_stays_held(soak_module: ModuleType, seed: int) -> None:
    report = soak_module.soak(500, seed)
    assert report.faults == []
    assert report.requests == 500
    assert {"ERROR", "CANCELLED", "LENGTH", "TIMED_OUT", "END_ID", "STOP_WORDS"} <= set(report.reasons)
