"""Entry points that are kept are those that there are."""

import importlib.metadata
from pathlib import Path

import pytest


def test_kept_entry_points_are_those_of_the_standard_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    group = "repoagent.agents"
    found = {name for one in importlib.metadata.distributions() for name in one.entry_points.select(group=group).names}
    assert "checksum" in found
    for _ in range(2):
        assert importlib.metadata.entry_points(group=group).names == found
    info = tmp_path / "other-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Name: other\nVersion: 1\n")
    for name in ("first", "second"):  # also where a file is replaced, which changes no directory
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = other\n")
        with monkeypatch.context() as patched:
            patched.syspath_prepend(tmp_path)
            assert importlib.metadata.entry_points(group=group).names == found | {name}
    assert importlib.metadata.entry_points(group=group).names == found
