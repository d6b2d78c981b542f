"""Names in an archive that no directory can hold, or that a clean-up cannot follow."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agents.fetch.tests.servers import Registry, tar

Refused = Callable[..., None]
LAYER = "application/vnd.oci.image.layer.v1.tar"


@pytest.mark.parametrize(
    "name",
    ["d/" * 1500 + "x", "d/" * 129 + "x", "n" * 256, "d/" + "\N{SNOWMAN}" * 100 + "/x", "n\udcff"],
    ids=["1500 directories", "129 directories", "a long name", "a long name of few letters", "not UTF-8"],
)
def test_they_are_refused_and_nothing_stays(
    refused: Refused, registry: Registry, tmp_path: Path, name: str, caplog: Any
) -> None:
    refused([registry.layer("evil", LAYER, tar({f"models/{name}": b"x"}))], "is not a plain path")
    assert [entry for entry in os.listdir(tmp_path / "cache" / "objects") if entry.startswith(".")] == []
    assert str(tmp_path) not in caplog.text.partition("raised in LOAD")[2]
