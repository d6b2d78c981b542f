"""Finding what should not be there."""

from pathlib import Path

from repoagent.storage.cache.cache import Cache
from repoagent.storage.workspaces.locks import FileLock
from repoagent.testing.leftovers import cache_faults, files_holding, held_locks, workspace_leftovers

PROCESS = "12-0123456789abcdef"


def test_a_marker_is_found_in_content_and_name_also_across_blocks(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "big").write_bytes(bytes((1 << 20) - 3) + b"MARKER")
    (tmp_path / "MARKER.txt").write_bytes(b"")
    (tmp_path / "other").write_bytes(b"MARKE")
    assert files_holding(b"MARKER", tmp_path) == [tmp_path / "MARKER.txt", tmp_path / "deep" / "er" / "big"]


def test_workspaces_are_empty_but_for_locks(tmp_path: Path) -> None:
    (tmp_path / PROCESS).mkdir()
    (tmp_path / PROCESS / ".alive").touch()
    (tmp_path / ".lock").touch()
    assert workspace_leftovers(tmp_path) == []
    (tmp_path / PROCESS / "1-m").mkdir()
    assert workspace_leftovers(tmp_path) == [tmp_path / PROCESS / "1-m"]


def test_locks_that_are_held_are_found(tmp_path: Path) -> None:
    for name in (".alive", "x.build", "x.use", "data"):
        (tmp_path / name).touch()
    assert held_locks(tmp_path) == []
    with FileLock(tmp_path / "x.build").acquired():
        assert held_locks(tmp_path) == [tmp_path / "x.build"]


def test_a_cache_is_whole_until_somebody_touches_it(tmp_path: Path) -> None:
    def build(directory: Path) -> None:
        (directory / "a").write_bytes(b"12345")

    with Cache(tmp_path / "cache") as cache:
        path = cache.get_or_build("key", build)
    assert cache_faults(tmp_path / "cache") == []
    assert cache_faults(tmp_path / "none") == []
    (path / "a").chmod(0o600)
    (path / "a").write_bytes(b"123")
    (path.parent / f".{path.name}.0123456789abcdef").mkdir()
    assert cache_faults(tmp_path / "cache") == [
        f".{path.name}.0123456789abcdef: left by a builder",
        f"{path.name}: 3 bytes of its own, expected 5",
        f"objects/{path.name}/a: writable",
    ]
