import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import InternalError, UnsafePathError
from repoagent.storage.paths import trees
from repoagent.storage.paths.trees import make_read_only, remove_tree, sync_tree, tree_size

Write = Callable[[Path, dict[str, bytes]], Path]


def test_removing_what_is_not_there_is_fine(tmp_path: Path) -> None:
    remove_tree(tmp_path / "absent")


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize("at", ["access", "walk"])
def test_what_something_else_removes_at_the_same_time_is_no_fault(
    tmp_path: Path, write_tree: Write, monkeypatch: pytest.MonkeyPatch, whole: bool, at: str
) -> None:
    root = write_tree(tmp_path / "m", {"a": b"", "1/2/x": b"", "z": b""})
    gone = root if whole else root / "1" / "2"
    access, fwalk = os.access, os.fwalk

    def lost(path: str, mode: int) -> bool:
        if path != str(gone):
            return access(path, mode)
        shutil.rmtree(gone, ignore_errors=True)
        return False

    def walk(*arguments: Any, **options: Any) -> Any:
        shutil.rmtree(gone, ignore_errors=True)
        return fwalk(*arguments, **options)

    monkeypatch.setattr(*((os, "access", lost) if at == "access" else (os, "fwalk", walk)))
    remove_tree(root)
    assert not root.exists()


def test_what_can_be_removed_goes_although_something_cannot(
    tmp_path: Path, write_tree: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tree(tmp_path / "m", {"a": b"", "1/stuck": b"", "z": b""})
    remove = trees._remove_entry

    def refuse(name: str, fd: int, wipe: bool) -> None:
        if name == "stuck":
            raise PermissionError("immutable")
        remove(name, fd, wipe)

    monkeypatch.setattr(trees, "_remove_entry", refuse)
    with pytest.raises(InternalError, match="immutable"):
        remove_tree(root)
    assert [path.name for path in root.rglob("*")] == ["1", "stuck"]


def test_the_file_to_keep_goes_only_when_all_else_is_gone(
    tmp_path: Path, write_tree: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = write_tree(tmp_path / "m", {".alive": b"", "1/.alive": b"", "2": b""})
    removed: list[str] = []
    remove = trees._remove_entry

    def watch(name: str, fd: int, wipe: bool) -> None:
        removed.append(name)
        remove(name, fd, wipe)

    monkeypatch.setattr(trees, "_remove_entry", watch)
    remove_tree(root, keep=".alive")
    assert sorted(removed) == [".alive", "1", "2"]  # only the inner one; the outer one goes by itself, last
    assert not root.exists()


def test_a_wiped_file_with_a_second_name_elsewhere_is_not_emptied(tmp_path: Path, write_tree: Write) -> None:
    root = write_tree(tmp_path / "m", {"a": b"content"})
    os.link(root / "a", tmp_path / "other")
    remove_tree(root, wipe=True)
    assert (tmp_path / "other").read_bytes() == b"content"


def test_sizes_add_up_and_links_count_as_links(tmp_path: Path, write_tree: Write) -> None:
    root = write_tree(tmp_path / "m", {"a": b"12", "1/b": b"345"})
    assert tree_size(root) == 5


def test_syncing_and_making_read_only_walk_the_whole_tree(tmp_path: Path, write_tree: Write) -> None:
    root = write_tree(tmp_path / "m", {"a": b"", "1/2/b": b""})
    make_read_only(root)
    sync_tree(root)
    assert all(path.stat().st_mode & 0o222 == 0 for path in root.rglob("*"))
    (tmp_path / "m" / "link").symlink_to("a")
    with pytest.raises(UnsafePathError, match="'link'"):
        make_read_only(root)


@pytest.mark.slow
@pytest.mark.parametrize("levels", [70, 1500])
def test_a_tree_deeper_than_a_walk_can_go_is_removed(tmp_path: Path, levels: int) -> None:
    top = tmp_path / "top"
    top.mkdir()
    here = os.open(top, os.O_RDONLY)
    for level in range(levels):
        os.mkdir("down", dir_fd=here)
        os.close(os.open(f"file{level}", os.O_CREAT | os.O_WRONLY, dir_fd=here))
        below = os.open("down", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    remove_tree(top)
    assert list(tmp_path.iterdir()) == []


def test_what_a_program_has_mounted_in_a_tree_stays_as_it_is(tmp_path: Path, write_tree: Write) -> None:
    """A command that had a model has mounted it, such as the data of a user: it was emptied."""
    root = write_tree(tmp_path / "m", {"a": b"x", "mounted/.keep": b"", "z/y": b"x"})
    code = f"from repoagent.storage.paths.trees import *; remove_tree(Path({str(root)!r}), wipe=True)"
    script = f'mount -t tmpfs none {root}/mounted && echo x > {root}/mounted/x && "$@"; cat {root}/mounted/x; ls {root}'
    words = ["unshare", "-m", "sh", "-c", script, "sh", sys.executable, "-c", code]
    if subprocess.run([*words[:2], "true"], capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here (unshare -m)")
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["x", "mounted"]
    assert f"could not remove {root}" in done.stderr
