"""What the tests of configurations share: recordings of what a stock Triton does with the same text."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

_DATA = Path(__file__).parent / "data"


def _cases(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((_DATA / f"triton_{name}.json").read_text())["cases"]
    return cases


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test once per recorded case, where it asks for one by the name of the recording."""
    for name in ("served", "refused", "overrides"):
        if name in metafunc.fixturenames:
            cases = _cases(name)
            metafunc.parametrize(name, cases, ids=[case["case"] for case in cases])


@pytest.fixture
def as_shown_by_triton() -> Callable[[dict[str, Any]], dict[str, Any]]:
    """Turn our JSON into what Triton 2.51 shows, by undoing the known differences."""
    return _as_shown_by_triton


def _as_shown_by_triton(shown: dict[str, Any]) -> dict[str, Any]:
    shown = json.loads(json.dumps(shown))
    if "ensemble_scheduling" in shown:
        del shown["ensemble_scheduling"]["max_inflight_requests"]  # a field newer than 2.51
        shown["model_transaction_policy"] = {"decoupled": False}  # set there when the members are known
    for state in shown.get("sequence_batching", {}).get("state", []):
        for initial in state["initial_state"]:
            initial["dims"] = [str(dim) for dim in initial["dims"]]  # forgotten there when 64-bit fields are fixed
    for spec in shown.get("optimization", {}).get("cuda", {}).get("graph_spec", []):
        for shape in (*spec["input"].values(), *spec["graph_lower_bound"]["input"].values()):
            shape["dim"] = [str(dim) for dim in shape["dim"]]
    return dict(shown)
