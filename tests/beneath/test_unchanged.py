"""A directory that is read by its paths."""

import os
from pathlib import Path

import pytest

from repoagent.beneath.unchanged import unchanged
from repoagent.errors import UnavailableError, UnsafePathError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "1" / "weights").mkdir(parents=True)
    (root / "1" / "model").write_text("model")
    (root / "1" / "weights" / "w").write_text("w")
    return root


def flip(path: Path) -> None:
    """Make ``path`` a link to the outside for a moment."""
    aside = path.with_name("aside")
    path.rename(aside)
    path.symlink_to("/etc")
    path.unlink()
    aside.rename(path)


def flip_and_hide(path: Path, times: os.stat_result) -> None:
    flip(path)
    os.utime(path.parent, ns=(times.st_atime_ns, times.st_mtime_ns))


def flip_and_fail(path: Path) -> None:
    flip(path)
    raise ValueError("mine")


@pytest.mark.parametrize("name", ["1/model", "1/weights/w", "1/weights", "1"])
def test_a_name_that_was_another_for_a_moment_is_noticed(root: Path, name: str) -> None:
    with pytest.raises(UnavailableError, match="changed while it was read"), unchanged(root, "1"):
        flip(root / name)


def test_the_owner_cannot_hide_it_by_setting_times(root: Path) -> None:
    times = (root / "1").stat()
    with pytest.raises(UnavailableError), unchanged(root, "1"):
        flip_and_hide(root / "1" / "model", times)


def test_new_content_of_a_file_and_changes_elsewhere_are_the_owners_affair(root: Path) -> None:
    (root / "2").mkdir()
    with unchanged(root, "1"):
        (root / "1" / "model").write_text("other")
        (root / "2" / "new").write_text("new")


@pytest.mark.parametrize("target", ["/etc/hostname", "../../../outside", "../../../root/1/model"])
def test_a_link_that_leads_out_is_refused_before(root: Path, target: str) -> None:
    (root / "1" / "weights" / "link").symlink_to(target)
    with pytest.raises(UnsafePathError), unchanged(root, "1"):
        pytest.fail("the block ran")


def test_links_that_stay_inside_are_watched_wherever_they_lead(root: Path) -> None:
    (root / "blobs").mkdir()
    (root / "blobs" / "b").write_text("b")
    (root / "1" / "link").symlink_to("../blobs/b")
    with unchanged(root, "1"):
        assert (root / "1" / "link").read_text() == "b"
    with pytest.raises(UnavailableError), unchanged(root, "1"):
        flip(root / "blobs" / "b")
    with pytest.raises(UnsafePathError), unchanged(root, "1", follow=False):
        pytest.fail("the block ran")


def test_a_link_to_a_directory_above_ends_nowhere(root: Path) -> None:
    (root / "1" / "again").symlink_to("..")
    with unchanged(root, "1"):
        pass


def test_a_pipe_is_refused_and_a_link_that_leads_nowhere_is_not(root: Path) -> None:
    (root / "1" / "nowhere").symlink_to("nothing")
    with unchanged(root, "1"):
        pass
    os.mkfifo(root / "1" / "pipe")
    with pytest.raises(UnsafePathError, match="neither a file nor a directory"), unchanged(root, "1"):
        pytest.fail("the block ran")


def test_what_the_block_raises_comes_out(root: Path) -> None:
    with pytest.raises(ValueError, match="mine"), unchanged(root, "1"):
        flip_and_fail(root / "1" / "model")
