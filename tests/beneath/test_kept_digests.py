"""Digests that are computed once, and only for as long as a file is the one that was hashed."""

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from repoagent.beneath.kept_digests import KeptDigests
from repoagent.errors import UnsafePathError
from repoagent.testing import write_files

CONTENT = {"1/a": b"a" * 3000, "b": b"b"}
NAMES = dict.fromkeys(CONTENT, ("sha256",))


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_files(tmp_path / "m", CONTENT)


@pytest.fixture
def kept(root: Path) -> KeptDigests:
    return KeptDigests(lambda path: path.is_relative_to(root))


def read(kept: KeptDigests, root: Path) -> int:
    """The bytes that were read for the digests of all files, which are right."""
    found, count = kept.digests(root, NAMES)
    assert {name: digests["sha256"] for name, digests in found.items()} == {
        name: sha256((root / name).read_bytes()) for name in CONTENT
    }
    return count


def test_a_file_is_read_once(kept: KeptDigests, root: Path) -> None:
    assert read(kept, root) == 3001
    assert read(kept, root) == 0


def test_another_algorithm_reads_it_again_and_both_are_kept(kept: KeptDigests, root: Path) -> None:
    read(kept, root)
    found, count = kept.digests(root, {"b": ("sha256", "md5")})
    assert (count, set(found["b"])) == (1, {"sha256", "md5"})
    assert kept.digests(root, {"b": ("md5",)})[1] == 0


def test_a_digest_that_is_stated_needs_no_look_at_the_content(kept: KeptDigests, root: Path) -> None:
    with (root / "b").open("wb") as file:
        file.write(b"new")
        file.flush()
        kept.keep(os.fstat(file.fileno()), {"sha256": "stated"})
    kept.settle()
    assert kept.digests(root, {"b": ("sha256",)}) == ({"b": {"sha256": "stated"}}, 0)


def test_of_a_directory_that_others_write_to_nothing_is_kept(root: Path) -> None:
    kept = KeptDigests(lambda _path: False)
    assert (read(kept, root), read(kept, root)) == (3001, 3001)


def test_a_directory_that_is_a_link_out_of_the_private_one_is_not_private(tmp_path: Path, root: Path) -> None:
    private = tmp_path / "private"
    private.mkdir()
    (private / "link").symlink_to(root)
    kept = KeptDigests(lambda path: path.is_relative_to(private))
    assert (read(kept, private / "link"), read(kept, private / "link")) == (3001, 3001)


def test_links_are_followed_where_that_is_allowed_and_never_vouched_for(kept: KeptDigests, root: Path) -> None:
    (root / "link").symlink_to("b")
    for _ in range(2):
        assert kept.digests(root, {"link": ("sha256",)}, follow=True) == ({"link": {"sha256": sha256(b"b")}}, 1)
    with pytest.raises(UnsafePathError):
        kept.digests(root, {"link": ("sha256",)})


def test_a_filesystem_that_counts_seconds_keeps_nothing(
    kept: KeptDigests, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent.beneath.digests.wait_for_clock", lambda _changed: False)
    assert (read(kept, root), read(kept, root)) == (3001, 3001)


def test_a_clock_that_was_set_back_forgets_what_was_stated(
    kept: KeptDigests, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept.keep((root / "b").stat(), {"sha256": "stated"})
    monkeypatch.setattr("repoagent.beneath.kept_digests.wait_for_clock", lambda _changed: False)
    kept.settle()
    assert kept.digests(root, {"b": ("sha256",)})[1] == 1


def _second_name(path: Path) -> None:
    os.link(path, path.with_name("second"))
    path.with_name("second").write_bytes(b"c")


def _swapped(path: Path) -> None:
    path.with_name("new").write_bytes(b"c")
    os.utime(path.with_name("new"), ns=(path.stat().st_mtime_ns,) * 2)
    path.with_name("new").rename(path)


def _restored(path: Path) -> None:
    times = path.stat()
    path.write_bytes(b"c")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))


def _directory_swapped(path: Path) -> None:
    path.parent.rename(path.parent.with_name("aside"))
    path.parent.mkdir()
    for name in CONTENT:
        (path.parent / name).parent.mkdir(exist_ok=True)
        (path.parent / name).write_bytes(b"c")


@pytest.mark.parametrize("change", [_second_name, _swapped, _restored, _directory_swapped])
def test_whatever_changes_a_file_its_digest_is_that_of_its_bytes(
    change: Callable[[Path], None], kept: KeptDigests, root: Path
) -> None:
    read(kept, root)
    change(root / "b")
    assert read(kept, root) > 0


def test_a_file_that_was_written_to_while_it_was_hashed_is_hashed_again(kept: KeptDigests, root: Path) -> None:
    def write(_done: int, _total: int) -> None:
        with (root / "b").open("r+b") as file:
            file.write(b"c")

    kept.digests(root, {"b": ("sha256",)}, progress=write)
    assert kept.digests(root, {"b": ("sha256",)}) == ({"b": {"sha256": sha256(b"c")}}, 1)
