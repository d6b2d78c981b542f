"""Digests of files, against hashlib over the whole content."""

import hashlib
import itertools
import sys
import threading
from pathlib import Path

import pytest

from repoagent.beneath import digests
from repoagent.beneath.digests import FileRange, digest_files, digest_ranges, new_hasher
from repoagent.errors import CancelledError, InvalidArgumentError, UnsafePathError, UnsupportedError

LARGE = digests.LARGE
SIZES = [0, 1, 100, digests.BUFFER_BYTES, digests.BUFFER_BYTES + 1, LARGE, LARGE + 1, 2 * LARGE, 2 * LARGE + 5]


def content(size: int) -> bytes:
    return (b"0123456789abcdef!" * (size // 17 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
def test_one_file_of_any_size_has_the_digest_of_its_content(tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(content(size))
    assert digest_files(tmp_path, {"a": ["sha256"]}) == {"a": {"sha256": hashlib.sha256(content(size)).hexdigest()}}


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_many_files_at_once_keep_their_digests_apart(tmp_path: Path, workers: int) -> None:
    for index, size in enumerate(SIZES):
        (tmp_path / str(index)).write_bytes(content(size))
    found = digest_files(tmp_path, {str(i): ["sha256"] for i in range(len(SIZES))}, workers=workers)
    assert [found[str(i)]["sha256"] for i in range(len(SIZES))] == [
        hashlib.sha256(content(size)).hexdigest() for size in SIZES
    ]


@pytest.mark.parametrize("size", [100, 2 * LARGE + 5])
def test_a_file_is_read_once_for_several_algorithms(tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(content(size))
    read: list[int] = []
    found = digest_files(tmp_path, {"a": ["sha256", "md5"]}, progress=lambda done, _total: read.append(done))
    assert found["a"]["md5"] == hashlib.md5(content(size)).hexdigest()
    assert found["a"]["sha256"] == hashlib.sha256(content(size)).hexdigest()
    assert read[-1] == size


def test_blake3_with_threads_agrees_with_the_plain_loop(tmp_path: Path) -> None:
    blake3 = pytest.importorskip("blake3").blake3
    (tmp_path / "a").write_bytes(content(2 * LARGE + 5))
    found = digest_files(tmp_path, {"a": ["blake3"]})
    assert found["a"]["blake3"] == blake3(content(2 * LARGE + 5)).hexdigest()


def test_progress_counts_the_bytes_of_all_files_and_is_never_told_at_once(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    inside = threading.Lock()

    def progress(done: int, total: int) -> None:
        assert inside.acquire(blocking=False)
        told.append((done, total))
        inside.release()

    for index in range(20):
        (tmp_path / str(index)).write_bytes(content(100_000 + index))
    digest_files(tmp_path, {str(i): ["sha256"] for i in range(20)}, progress=progress, workers=4)
    total = sum(100_000 + index for index in range(20))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (total, total)


def test_a_cancelled_load_stops_at_the_next_buffer(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content(3 * LARGE))
    told: list[int] = []
    with pytest.raises(CancelledError, match="cancelled"):
        digest_files(
            tmp_path,
            {"a": ["sha256"]},
            cancelled=lambda: len(told) == 1,
            progress=lambda done, _total: told.append(done),
        )
    assert len(told) == 1


def test_the_first_file_that_fails_stops_the_others(tmp_path: Path) -> None:
    for index in range(50):
        (tmp_path / str(index)).write_bytes(content(10))
    jobs = {str(i): ["sha256"] for i in range(51)}
    with pytest.raises(FileNotFoundError) as failed:
        digest_files(tmp_path, jobs, workers=2)
    assert failed.value.filename == "50"


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(IsADirectoryError) as failed:
        digest_files(tmp_path, {"1": ["sha256"]})
    assert failed.value.filename == "1"


def test_no_file_is_no_work(tmp_path: Path) -> None:
    assert digest_files(tmp_path, {}) == {}


def test_progress_moves_within_a_file(tmp_path: Path) -> None:
    """A model is often one file of many gigabytes."""
    with (tmp_path / "weights").open("wb") as weights:
        weights.truncate(64 << 20)
    pieces = itertools.count()
    moved = threading.Event()

    def progress(done: int, total: int) -> None:
        if 1 << 20 <= done < total:
            moved.set()

    def wait() -> bool:
        assert next(pieces) < 3 or moved.wait(60), "no report before the end of the file"
        return False

    (tmp_path / "config").write_bytes(b"x")
    files = dict.fromkeys(["weights", "config"], ("sha256",))
    digest_files(tmp_path, files, cancelled=wait, progress=progress)


@pytest.mark.parametrize("size", [1, 1000, LARGE + 7])
def test_ranges_of_a_file_have_the_digests_of_their_bytes(tmp_path: Path, size: int) -> None:
    whole = content(3 * LARGE)
    (tmp_path / "a").write_bytes(whole)
    ranges = [FileRange("a"), FileRange("a", 5), FileRange("a", 0, size), FileRange("a", 11, 11 + size)]
    wanted = [whole, whole[5:], whole[:size], whole[11 : 11 + size]]
    assert digest_ranges(tmp_path, ranges, "sha256") == [hashlib.sha256(each).digest() for each in wanted]


def test_a_range_that_a_file_does_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"short")
    with pytest.raises(InvalidArgumentError, match="'a' ends before byte 6"):
        digest_ranges(tmp_path, [FileRange("a", 0, 6)], "sha256")


def test_links_are_followed_only_beneath_the_root_and_if_asked(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "a").write_bytes(b"content")
    (tmp_path / "outside").write_bytes(b"secret")
    (root / "link").symlink_to("a")
    (root / "out").symlink_to("../outside")
    found = digest_files(root, {"link": ["sha256"]}, follow=True)
    assert found == {"link": {"sha256": hashlib.sha256(b"content").hexdigest()}}
    for name, follow in (("link", False), ("out", False), ("out", True)):
        with pytest.raises(UnsafePathError):
            digest_files(root, {name: ["sha256"]}, follow=follow)


def test_blake3_gives_the_value_of_the_official_test_vectors() -> None:
    pytest.importorskip("blake3")
    # Case input_len 0 of test_vectors.json in the BLAKE3 repository, and 1025 bytes of its repeating pattern.
    assert new_hasher("blake3").hexdigest() == "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"
    pattern = bytes(i % 251 for i in range(1025))
    for threads in (False, True):
        hasher = new_hasher("blake3", threads=threads)
        hasher.update(pattern)
        assert hasher.hexdigest() == "d00278ae47eb27b34faecf67b4fe263f82d5412916c1ffd97c8cb7fb814b8444"


def test_git_sha1_is_the_name_of_a_blob() -> None:
    assert new_hasher("git-sha1").hexdigest() == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    hello = new_hasher("git-sha1", 6)
    hello.update(b"hello\n")
    assert hello.hexdigest() == "ce013625030ba8dba906f756967f9e9ca394464a"


def test_a_missing_blake3_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "blake3", None)
    with pytest.raises(UnsupportedError, match="pip install blake3"):
        new_hasher("blake3")
