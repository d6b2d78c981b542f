"""``--model-load-on-demand`` and its budget, in a real server."""

from pathlib import Path
from typing import Any

import pytest


def _size(model: Path) -> int:
    return sum(file.stat().st_size for file in model.rglob("*") if file.is_file())


def _ready(server: Any) -> set[str]:
    return {name for name, entry in server.index().items() if entry.get("state") == "READY"}


@pytest.fixture
def sizes(world: Any) -> list[int]:
    """Two models of nearly the same size beside "plain"; how large the two are."""
    return [_size(world.model("first", operation="Neg")), _size(world.model("other", operation="Abs"))]


def test_a_request_loads_the_model_and_the_budget_unloads_the_one_used_least_lately(
    world: Any, sizes: list[int]
) -> None:
    budget = max(sizes) + min(sizes) // 2
    server = world.serve("--load-model=plain", "--model-load-on-demand", f"--model-memory-budget-bytes={budget}")
    assert _ready(server) == {"plain"}
    assert server.http.get("/v2/models/first").status_code != 200, "asking for metadata loads nothing"
    assert server.answer("first") == [1, -2, 3, -4]
    assert _ready(server) == {"plain", "first"}
    # The answer to "first" may be here before its request counts as over; until then there is no room, which is a 503.
    server.until(lambda: server.ask("other").status_code == 200, "room for the other model")
    assert server.answer("other") == [1, 2, 3, 4]
    assert _ready(server) == {"plain", "other"}, "what was loaded by name stays, what was loaded on demand makes room"
    assert server.ask("nosuch").status_code == 404
    assert server.stop() == 0


def test_without_the_flag_a_request_loads_nothing(world: Any, sizes: list[int]) -> None:
    server = world.serve()
    assert server.ask("first").status_code == 404
    assert _ready(server) == set()
