"""Opening by a name beneath a root."""

import os
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from repoagent.beneath import opening
from repoagent.beneath.opening import (
    DEEPEST,
    held_beneath,
    list_beneath,
    open_beneath,
    open_directory,
    read_beneath,
    read_small_file,
    status_beneath,
    walk_beneath,
)
from repoagent.beneath.unchanged import Watched
from repoagent.errors import InvalidArgumentError, UnsafePathError
from repoagent.storage.transfer.snapshot import snapshot
from tests.descriptors import descriptors_beneath


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with files and all kinds of links, and a file outside."""
    (tmp_path / "outside.txt").write_text("outside")
    root = tmp_path / "root"
    (root / "1" / "deep").mkdir(parents=True)
    (root / "1" / "file").write_text("inside")
    (root / "1" / "deep" / "file").write_text("deep")
    links = {
        "beside": "1/file",
        "1/up": "../1/deep/../file",
        "1/directory": "deep",
        "absolute": str(root / "1" / "file"),
        "out": "../outside.txt",
        "out-absolute": str(tmp_path / "outside.txt"),
        "out-and-in": f"../{root.name}/1/file",
        "1/deep/far": "../../../outside.txt",
        "etc": "/etc",
        "loop": "loop",
        "nowhere": "1/nothing",
    }
    for name, target in links.items():
        (root / name).symlink_to(target)
    return root


@pytest.mark.parametrize("name", ["1/file", "./1//file", "1/file/", "beside", "1/up", "absolute"])
def test_what_lies_beneath_the_root_is_opened(root: Path, name: str) -> None:
    assert read_beneath(root, name, limit=100) == b"inside"


def test_a_link_to_a_directory_may_be_on_the_way(root: Path) -> None:
    assert read_beneath(root, "1/directory/file", limit=100) == b"deep"
    assert list_beneath(root, "1/directory") == ["far", "file"]


def test_a_walk_names_everything_once_and_follows_no_link(root: Path) -> None:
    found = {name: mode for name, mode, _ in walk_beneath(root)}
    assert list(found) == sorted(found, key=lambda name: name.split("/"))  # a directory before what is in it
    assert set(found) == {str(path.relative_to(root)) for path in root.rglob("*")}
    for name, mode in found.items():
        assert stat.S_IFMT(mode) == stat.S_IFMT((root / name).lstat().st_mode)


def test_a_walk_yields_sizes_and_leaves_out_what_is_skipped(root: Path) -> None:
    sizes = {name: size for name, mode, size in walk_beneath(root, skip="1/deep".__eq__) if stat.S_ISREG(mode)}
    assert sizes["1/file"] == len(b"inside")
    assert not any(name.startswith("1/deep") for name in sizes)


def test_a_walk_that_follows_links_yields_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(b"12345")
    (tmp_path / "directory").symlink_to("a/b")
    (tmp_path / "file").symlink_to("directory/file")
    found = {name: (stat.S_ISREG(mode), size) for name, mode, size in walk_beneath(tmp_path, follow=True)}
    assert list(found) == ["a", "a/b", "a/b/file", "directory", "directory/file", "file"]
    assert {name for name, (regular, size) in found.items() if regular and size == 5} == {
        "a/b/file",
        "directory/file",
        "file",
    }


@pytest.mark.parametrize(
    ("target", "reason"),
    [("/etc", "leaves"), ("../..", "leaves"), (".", "circle"), ("..", "circle"), ("it", "nowhere"), ("no", "nowhere")],
)
def test_a_walk_that_follows_links_refuses_those_that_lead_elsewhere(tmp_path: Path, target: str, reason: str) -> None:
    (tmp_path / "root" / "a").mkdir(parents=True)
    (tmp_path / "root" / "a" / "it").symlink_to(target)
    with pytest.raises(UnsafePathError, match=reason):
        list(walk_beneath(tmp_path / "root", follow=True))


def test_a_walk_refuses_directories_that_are_too_deep(tmp_path: Path) -> None:
    tmp_path.joinpath(*["d"] * DEEPEST).mkdir(parents=True)
    assert len(list(walk_beneath(tmp_path))) == DEEPEST
    tmp_path.joinpath(*["d"] * (DEEPEST + 1)).mkdir(parents=True)
    with pytest.raises(UnsafePathError, match="directories in one another"):
        list(walk_beneath(tmp_path))


@pytest.mark.parametrize(
    "name",
    ["out", "out-absolute", "out-and-in", "1/deep/far", "1/directory/far", "etc/hostname", "../outside.txt", "/etc"],
)
def test_what_leads_out_is_refused(root: Path, name: str) -> None:
    with pytest.raises(UnsafePathError):
        open_beneath(root, name)
    with pytest.raises(UnsafePathError):
        status_beneath(root, name)


@pytest.mark.parametrize("name", ["loop", "nowhere", "1/nothing", "1/file/below", "1", ""])
def test_what_is_not_a_file_is_an_error_of_the_system(root: Path, name: str) -> None:
    with pytest.raises(OSError, match=r"\[Errno"):
        open_beneath(root, name)


@pytest.mark.parametrize("name", ["beside", "1/up", "1/directory/file", "absolute"])
def test_no_link_is_followed_for_who_asks_for_that(root: Path, name: str) -> None:
    with pytest.raises(UnsafePathError, match="symbolic link, which is never followed"):
        open_beneath(root, name, follow=False)


def test_the_root_itself_may_be_a_link(root: Path, tmp_path: Path) -> None:
    (tmp_path / "alias").symlink_to(root)
    assert read_beneath(tmp_path / "alias", "1/file", limit=100) == b"inside"
    assert read_beneath(tmp_path / "alias", "absolute", limit=100) == b"inside"


def test_a_pipe_and_a_device_are_refused_at_once(root: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "null").symlink_to("/dev/null")
    for name in ("pipe", "null"):
        with pytest.raises(UnsafePathError):
            open_beneath(root, name)
    with pytest.raises(InvalidArgumentError, match="not a regular file"):
        read_small_file(root / "pipe", limit=100)
    with pytest.raises(InvalidArgumentError, match="not a regular file"):
        read_small_file("/dev/zero", limit=100)


def test_no_more_than_the_limit_is_read(root: Path) -> None:
    with (root / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidArgumentError, match="larger than 100 bytes"):
        read_beneath(root, "sparse", limit=100)
    with pytest.raises(InvalidArgumentError, match="larger than 100 bytes"):
        read_small_file(root / "sparse", limit=100)
    assert read_beneath(root, "1/file", limit=6) == b"inside"


def test_another_users_file_under_a_second_name_is_refused(root: Path, tmp_path: Path) -> None:
    os.link(tmp_path / "outside.txt", root / "second")
    assert read_beneath(root, "second", limit=100) == b"outside"  # one's own file under two names is one's own affair
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    os.chown(root, 12345, -1)
    with pytest.raises(UnsafePathError, match="hard link"):
        open_beneath(root, "second")


@pytest.mark.parametrize(
    ("mode", "refused"), [(0o755, False), (0o1755, False), (0o775, True), (0o757, True), (0o1777, True)]
)
def test_a_hard_link_is_read_only_where_no_one_but_the_owner_of_the_file_can_have_made_it(
    tmp_path: Path, mode: int, refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """T24: of one user's file, in a directory of the same user in which others may write; the system allows it."""
    monkeypatch.setattr(opening, "_system_protects_links", lambda: False)
    (tmp_path / "secret").write_text("outside")
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "second").hardlink_to(tmp_path / "secret")
    (tmp_path / "m" / "1").chmod(mode)
    ways: list[Callable[[], object]] = [
        lambda: open_beneath(tmp_path / "m", "1/second").close(),
        lambda: Watched(tmp_path / "m", "1"),
        lambda: snapshot(tmp_path / "m", tmp_path / "copy"),
    ]
    for way in ways:
        with pytest.raises(UnsafePathError, match="hard link") if refused else nullcontext():
            way()
    monkeypatch.setattr(opening, "_system_protects_links", lambda: True)
    ways[0]()


def test_a_held_path_leads_to_the_file_whatever_becomes_of_its_name(root: Path) -> None:
    with held_beneath(root, "1/file") as path:
        (root / "1" / "file").unlink()
        (root / "1" / "file").symlink_to("/etc/hostname")
        assert path.read_text() == "inside"


def test_no_descriptor_is_left_open(root: Path) -> None:
    for name in ("1/file", "out", "loop", "etc/hostname", "1/directory/far", "1", "../x"):
        try:
            open_beneath(root, name).close()
        except (OSError, UnsafePathError):
            continue
    with open_directory(root, "1/directory"):
        pass
    assert descriptors_beneath(root.parent) == []


@pytest.mark.slow
@given(st.lists(st.sampled_from(["..", ".", "", "1", "file", "deep", "far", "out", "etc", "loop", "directory"])))
def test_no_combination_of_names_and_links_leads_out(
    tmp_path_factory: pytest.TempPathFactory, parts: list[str]
) -> None:
    root = tmp_path_factory.getbasetemp() / "combined" / "root"
    if not root.exists():
        (root / "1" / "deep").mkdir(parents=True)
        (root.parent / "outside.txt").write_text("outside")
        (root / "1" / "file").write_text("inside")
        for name, target in {"out": "..", "1/deep/far": "../../..", "1/directory": "deep/../..", "etc": "/etc"}.items():
            (root / name).symlink_to(target)
    try:
        status = status_beneath(root, "/".join(parts))
    except (OSError, UnsafePathError):
        return
    inside = {os.stat(path).st_ino for path in (root, root / "1", root / "1" / "deep", root / "1" / "file")}
    assert status.st_ino in inside
