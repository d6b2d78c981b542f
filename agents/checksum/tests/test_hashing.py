"""Digests of files, against hashlib over the whole content."""

import hashlib
import threading
from pathlib import Path

import pytest
from repoagent_checksum import hashing
from repoagent_checksum.algorithms import ALGORITHMS
from repoagent_checksum.hashing import digest_files
from repoagent_checksum.observer import Observer

from repoagent.api import CancelledError, InvalidArgumentError

SHA256 = ALGORITHMS["SHA256"]
LARGE = hashing.LARGE_BUFFER_BYTES
SIZES = [0, 1, 100, hashing.BUFFER_BYTES, hashing.BUFFER_BYTES + 1, LARGE, LARGE + 1, 2 * LARGE, 2 * LARGE + 5]


def content(size: int) -> bytes:
    return (b"0123456789abcdef!" * (size // 17 + 1))[:size]


@pytest.mark.parametrize("size", SIZES)
def test_one_file_of_any_size_has_the_digest_of_its_content(tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(content(size))
    assert digest_files(tmp_path, {"a": [SHA256]}) == {"a": {"SHA256": hashlib.sha256(content(size)).hexdigest()}}


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_many_files_at_once_keep_their_digests_apart(tmp_path: Path, workers: int) -> None:
    for index, size in enumerate(SIZES):
        (tmp_path / str(index)).write_bytes(content(size))
    found = digest_files(tmp_path, {str(i): [SHA256] for i in range(len(SIZES))}, workers=workers)
    assert [found[str(i)]["SHA256"] for i in range(len(SIZES))] == [
        hashlib.sha256(content(size)).hexdigest() for size in SIZES
    ]


@pytest.mark.parametrize("size", [100, 2 * LARGE + 5])
def test_a_file_is_read_once_for_several_algorithms(tmp_path: Path, size: int) -> None:
    (tmp_path / "a").write_bytes(content(size))
    read: list[int] = []
    observer = Observer(progress=lambda done, total: read.append(done))
    found = digest_files(tmp_path, {"a": [SHA256, ALGORITHMS["MD5"]]}, observer=observer)
    assert found["a"]["MD5"] == hashlib.md5(content(size)).hexdigest()
    assert found["a"]["SHA256"] == hashlib.sha256(content(size)).hexdigest()
    assert read[-1] == size


def test_blake3_with_threads_agrees_with_the_plain_loop(tmp_path: Path) -> None:
    blake3 = pytest.importorskip("blake3").blake3
    (tmp_path / "a").write_bytes(content(2 * LARGE + 5))
    found = digest_files(tmp_path, {"a": [ALGORITHMS["BLAKE3"]]})
    assert found["a"]["BLAKE3"] == blake3(content(2 * LARGE + 5)).hexdigest()


def test_progress_counts_the_bytes_of_all_files_and_is_never_told_at_once(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    inside = threading.Lock()

    def progress(done: int, total: int) -> None:
        assert inside.acquire(blocking=False)
        told.append((done, total))
        inside.release()

    for index in range(20):
        (tmp_path / str(index)).write_bytes(content(100_000 + index))
    digest_files(tmp_path, {str(i): [SHA256] for i in range(20)}, observer=Observer(progress=progress), workers=4)
    total = sum(100_000 + index for index in range(20))
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert told[-1] == (total, total)


def test_a_cancelled_load_stops_at_the_next_buffer(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content(3 * LARGE))
    told: list[int] = []
    observer = Observer(cancelled=lambda: len(told) == 1, progress=lambda done, _total: told.append(done))
    with pytest.raises(CancelledError, match="cancelled"):
        digest_files(tmp_path, {"a": [SHA256]}, observer=observer)
    assert len(told) == 1


def test_the_first_file_that_fails_stops_the_others(tmp_path: Path) -> None:
    for index in range(50):
        (tmp_path / str(index)).write_bytes(content(10))
    jobs = {str(i): [SHA256] for i in range(51)}
    with pytest.raises(
        InvalidArgumentError, match=r"^failed to open text file for read 50: No such file or directory$"
    ):
        digest_files(tmp_path, jobs, workers=2)


def test_a_file_of_another_kind_is_named(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"^failed to open text file for read 1: Is a directory$"):
        digest_files(tmp_path, {"1": [SHA256]})


def test_no_file_is_no_work(tmp_path: Path) -> None:
    assert digest_files(tmp_path, {}) == {}
