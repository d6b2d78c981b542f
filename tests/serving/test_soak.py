"""One hundredth of ``make soak``: see benchmarks/soak_core.py and benchmarks/soak_lifecycle.py."""

import importlib.util
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
Opener = Callable[[str], ModuleType]


@pytest.fixture
def open_script(monkeypatch: pytest.MonkeyPatch) -> Opener:
    def opened(name: str) -> ModuleType:
        monkeypatch.syspath_prepend(str(BENCHMARKS))
        spec = importlib.util.spec_from_file_location(name, BENCHMARKS / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        monkeypatch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
        return module

    return opened


def test_mixed_requests_under_reloads_are_answered_once_and_rightly_and_nothing_is_left_behind(
    open_script: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "repoagent")
    report = open_script("soak_core").soak(0.01, seed=0)
    assert report.faults == []
    assert report.requests == 10_000
    assert {"ok", "cancelled", "timed out", "failed"} <= set(report.outcomes)
    assert report.reloads > 0


def test_models_whose_agents_raise_anywhere_live_legal_lives_and_every_call_returns(
    open_script: Opener, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1, "repoagent")
    report = open_script("soak_lifecycle").soak(18, seed=0, round_seconds=6)
    assert report.faults == []
    assert report.rounds >= 3
    assert {"load: ok", "load: InternalError", "unload: ok", "infer: ok"} <= set(report.outcomes)
