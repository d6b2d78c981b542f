"""Names from outside never lead out of the directory."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_checksum import file_names
from repoagent_checksum.file_names import open_inside, plain_name, read_inside, show

from repoagent.api import InvalidArgumentError, UnsafePathError


@pytest.mark.parametrize("name", ["", ".", "..", "/a", "a//b", "a/", "../a", "a/../b", "a/./b", "a\0b", "./", ".//a"])
def test_a_name_that_is_not_plainly_inside_is_refused(name: str) -> None:
    with pytest.raises(UnsafePathError, match="SHA256SUMS:3"):
        plain_name(name, "SHA256SUMS:3")


@pytest.mark.parametrize(("name", "plain"), [("a", "a"), ("./a/b", "a/b"), ("..a/...", "..a/..."), ("a\\b", "a\\b")])
def test_a_plain_name_loses_only_a_leading_dot(name: str, plain: str) -> None:
    assert plain_name(name, "") == plain


@given(st.text())
def test_what_is_accepted_stays_inside(name: str) -> None:
    try:
        plain = plain_name(name, "")
    except UnsafePathError:
        return
    assert os.path.normpath(f"/model/{plain}") == f"/model/{plain}"


def test_show_gives_one_printable_line() -> None:
    assert show("a\nb\udcffc\x1b[2J") == r"a\nb\udcffc\x1b[2J"


def test_a_file_is_opened_below_directories(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "a").write_bytes(b"content")
    with open_inside(tmp_path, "1/a") as file:
        assert file.read() == b"content"


@pytest.mark.parametrize("link", ["1", "1/a"])
def test_a_link_is_never_followed(tmp_path: Path, link: str) -> None:
    real = tmp_path / "real"
    real.mkdir()
    (real / "a").write_bytes(b"")
    root = tmp_path / "root"
    root.mkdir()
    if link == "1":
        (root / "1").symlink_to(real)
    else:
        (root / "1").mkdir()
        (root / "1" / "a").symlink_to(real / "a")
    with pytest.raises(UnsafePathError, match="symbolic link"):
        open_inside(root, "1/a")


def test_a_fifo_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UnsafePathError, match="neither a file"):
        open_inside(tmp_path, "pipe")


def test_a_directory_is_not_a_file(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(IsADirectoryError):
        open_inside(tmp_path, "1")


def test_no_descriptor_stays_open_after_a_refusal(tmp_path: Path) -> None:
    (tmp_path / "1" / "2").mkdir(parents=True)
    (tmp_path / "1" / "link").symlink_to("2")

    def inside() -> int:  # other threads of the test run have descriptors of their own
        links = (Path(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd"))
        return sum(os.path.realpath(link).startswith(str(tmp_path)) for link in links)

    for name in ("1/2", "1/none", "1/link", "none/a"):
        with pytest.raises((OSError, UnsafePathError)):
            open_inside(tmp_path, name)
    assert inside() == 0


def test_a_file_that_is_too_large_to_read_at_once_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_names, "MAX_TEXT_BYTES", 1 << 20)
    (tmp_path / "fits").write_bytes(b"a" * (1 << 20))
    (tmp_path / "large").write_bytes(b"a" * ((1 << 20) + 1))
    assert len(read_inside(tmp_path, "fits", "manifest")) == 1 << 20
    with pytest.raises(InvalidArgumentError, match="'large' is larger than 1048576 bytes"):
        read_inside(tmp_path, "large", "manifest")


def test_a_missing_small_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgumentError, match="manifest SUMS cannot be read: No such file"):
        read_inside(tmp_path, "SUMS", "manifest")
