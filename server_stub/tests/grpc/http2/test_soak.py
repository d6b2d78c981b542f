"""One hundredth of ``make soak``: see benchmarks/soak_grpc.py."""

import importlib
import sys
from pathlib import Path
from types import ModuleType

import pytest
from repoagent_server.shared.grpc_options import TRANSPORTS

pytestmark = pytest.mark.slow

BENCHMARKS = Path(__file__).parents[4] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module = importlib.import_module("soak_grpc")
    monkeypatch.delitem(sys.modules, "soak_grpc")
    return module


def test_frames_of_any_kind_raise_nothing_and_leave_nothing(script: ModuleType) -> None:
    report = script.fuzz(0.01, seed=0)
    assert report.faults == []
    assert min(report.outcomes.values()) > 100


@pytest.mark.parametrize("carrier", TRANSPORTS)
def test_every_call_has_one_outcome_and_the_right_one(script: ModuleType, carrier: str) -> None:
    report = script.soak(carrier, 0.003, seed=0)
    assert report.faults == []
    assert min(report.outcomes[kind] for kind in ("answered", "cancelled", "streams")) > 0
