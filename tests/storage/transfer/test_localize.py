import errno
import http.server
import os
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem

from repoagent.errors import AlreadyExistsError, CancelledError, NotFoundError, UnavailableError, UnsafePathError
from repoagent.storage.repositories.sources import Repository, new_memory_filesystem
from repoagent.storage.transfer.localize import localize
from repoagent.storage.transfer.streams import SEGMENT as PART_SIZE

Read = Callable[[Path], dict[str, bytes]]


class FaultyFileSystem(LocalFileSystem):  # type: ignore[misc]
    """A disk whose reads can be watched and made to fail."""

    cachable = False

    def __init__(self, before_read: Callable[[str, int], None]) -> None:
        super().__init__()
        self.before_read = before_read

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **options: Any) -> Any:
        self.before_read(path, start or 0)
        return super().cat_file(path, start=start, end=end, **options)


@pytest.fixture
def model(tmp_path: Path, write_tree: Callable[..., Path]) -> Path:
    return write_tree(
        tmp_path / "source" / "m", {"config.pbtxt": b"c", "1/w": os.urandom(2 * PART_SIZE + 5), "1/e": b""}
    )


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("repoagent.storage.transfer.download_file._FIRST_PAUSE", 0.0)


def _only(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_model_on_s3_arrives_whole_in_ranges_with_progress(s3_bucket: Any, tmp_path: Path, read_tree: Read) -> None:
    files = {
        "config.pbtxt": b"c",
        "1/big": os.urandom(PART_SIZE + 123),
        "1/empty": b"",
        "1/sub/é ü+%20.txt": b"odd name",
    }
    s3_bucket.put({f"models/m/{path}": content for path, content in files.items()} | {"models/m2/x": b"not mine"})
    source = Repository.open(s3_bucket.url("models")).model("m")
    assert source is not None
    seen: list[tuple[int, int]] = []
    localize(source.fs, source.root, tmp_path / "copy", progress=lambda done, total: seen.append((done, total)))
    assert read_tree(tmp_path / "copy") == files
    total = sum(map(len, files.values()))
    assert seen == sorted(seen)
    assert seen[-1] == (total, total)
    assert _only(tmp_path) == ["copy"]


def test_an_object_name_with_two_dots_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    fs = new_memory_filesystem()
    fs.pipe_file("/repo/m/ok", b"1")
    for name in ("/repo/m/../../evil", "/repo/m/1//x"):
        fs.store[name] = fs.store["/repo/m/ok"]
        with pytest.raises(UnsafePathError):
            localize(fs, "/repo/m", tmp_path / "copy")
        del fs.store[name]
    assert _only(tmp_path) == []


def test_an_object_that_is_also_a_prefix_is_refused(s3_bucket: Any, tmp_path: Path) -> None:
    s3_bucket.put({"m/1": b"file", "m/1/x": b"below it"})
    with pytest.raises(UnsafePathError, match="both a file and a directory"):
        localize(s3_bucket.fs, f"{s3_bucket.name}/m", tmp_path / "copy")


def test_an_object_that_changes_meanwhile_is_noticed_by_its_etag(s3_bucket: Any, tmp_path: Path) -> None:
    s3_bucket.put({"m/a": b"old", "m/b": b"old"})
    with pytest.raises(UnavailableError, match=r"changed while it was copied \(a\)"):
        localize(
            s3_bucket.fs, f"{s3_bucket.name}/m", tmp_path / "copy", progress=lambda *_: s3_bucket.put({"m/a": b"new"})
        )
    assert _only(tmp_path) == []


@pytest.mark.usefixtures("no_pauses")
def test_a_failed_range_is_fetched_again_and_no_other(model: Path, tmp_path: Path, read_tree: Read) -> None:
    reads: list[tuple[str, int]] = []
    lock = threading.Lock()

    def fail_twice(path: str, start: int) -> None:
        with lock:
            reads.append((Path(path).name, start))
            if start == PART_SIZE and reads.count(("w", PART_SIZE)) <= 2:
                raise ConnectionResetError("the connection broke")

    localize(FaultyFileSystem(fail_twice), str(model), tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(model)
    assert sorted(reads) == [("config.pbtxt", 0), ("w", 0), *[("w", PART_SIZE)] * 3, ("w", 2 * PART_SIZE)]


@pytest.mark.usefixtures("no_pauses")
def test_a_range_that_never_comes_gives_up_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    def fail(path: str, start: int) -> None:
        if start == PART_SIZE:
            raise TimeoutError("no answer")

    with pytest.raises(UnavailableError, match=r"1/w \(attempt 5\): TimeoutError: no answer"):
        localize(FaultyFileSystem(fail), str(model), tmp_path / "copy")
    assert _only(tmp_path) == ["source"]


@pytest.mark.parametrize("error", [FileNotFoundError("gone"), PermissionError("denied")])
def test_what_another_try_cannot_mend_is_not_tried_again(model: Path, tmp_path: Path, error: OSError) -> None:
    def fail(path: str, start: int) -> None:
        raise error

    with pytest.raises(UnavailableError, match=r"\(attempt 1\)"):
        localize(FaultyFileSystem(fail), str(model), tmp_path / "copy", workers=1)


@pytest.mark.usefixtures("no_pauses")
def test_a_file_that_shrinks_is_not_taken_for_whole(model: Path, tmp_path: Path) -> None:
    def shrink(path: str, start: int) -> None:
        os.truncate(model / "1/w", 10)

    with pytest.raises(UnavailableError, match="bytes came for the range"):
        localize(FaultyFileSystem(shrink), str(model), tmp_path / "copy")
    assert _only(tmp_path) == ["source"]


def test_a_copy_can_be_cancelled_between_parts(model: Path, tmp_path: Path) -> None:
    reads: list[int] = []
    fs = FaultyFileSystem(lambda path, start: reads.append(start))
    with pytest.raises(CancelledError):
        localize(fs, str(model), tmp_path / "copy", workers=1, cancelled=lambda: bool(reads))
    assert len(reads) == 1
    assert _only(tmp_path) == ["source"]


def test_a_full_disk_is_said_with_the_bytes_before_anything_is_read(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("repoagent.storage.transfer.localize.free_bytes", lambda path: 5)
    with pytest.raises(UnavailableError, match=rf"needs {2 * PART_SIZE + 6} bytes .* 5 bytes free"):
        localize(LocalFileSystem(), str(model), tmp_path / "copy")
    assert _only(tmp_path) == ["source"]


def test_a_disk_that_fills_meanwhile_is_said(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(UnavailableError, match="no space left"):
        localize(LocalFileSystem(), str(model), tmp_path / "copy")
    monkeypatch.undo()
    assert _only(tmp_path) == ["source"]


def test_a_tmpfs_that_is_too_small_is_said(model: Path, tiny_tmpfs: Path) -> None:
    with pytest.raises(UnavailableError, match="bytes free"):
        localize(LocalFileSystem(), str(model), tiny_tmpfs / "copy")
    assert _only(tiny_tmpfs) == []


def test_an_empty_target_is_filled_and_a_full_one_refused(model: Path, tmp_path: Path, read_tree: Read) -> None:
    (tmp_path / "copy").mkdir()
    localize(LocalFileSystem(), str(model), tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(model)
    with pytest.raises(AlreadyExistsError):
        localize(LocalFileSystem(), str(model), tmp_path / "copy")


def test_a_source_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        localize(LocalFileSystem(), str(tmp_path / "absent"), tmp_path / "copy")


@pytest.fixture
def web(tmp_path: Path, write_tree: Callable[..., Path]) -> Iterator[str]:
    """A web server with a directory index, which knows no ranges."""

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *arguments: object) -> None:
            """Say nothing."""

    write_tree(tmp_path / "www", {"repo/m/1/w": b"w" * 100_000, "repo/m/config.pbtxt": b"c", "repo/m/1/a b.txt": b"x"})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(tmp_path / "www")))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/repo"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_repository_on_a_web_server_can_be_listed_and_brought_here(
    web: str, tmp_path: Path, read_tree: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    repository = Repository.open(web)
    source = repository.model("m")
    assert repository.model_names() == ["m"]
    assert source is not None
    assert source.versions() == [1]
    assert source.read_config_text() == "c"
    localize(source.fs, source.root, tmp_path / "copy")
    assert read_tree(tmp_path / "copy") == read_tree(tmp_path / "www" / "repo" / "m")
