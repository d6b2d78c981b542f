"""A store that reports a size that no file has."""

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
import pytest

from repoagent.errors import InvalidArgumentError
from repoagent.storage.transfer.download_context import DownloadContext
from repoagent.storage.transfer.download_file import download_file
from repoagent.storage.transfer.partial_file import PartialFile
from repoagent.storage.transfer.streams import ByteStream, RemoteFile, fsspec_opener

CONTENT = b"weights" * 1000
DIGEST = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@contextmanager
def unfinished(path: Path) -> Iterator[PartialFile]:
    one = PartialFile(path, "w", provable=False)
    yield one
    one.close()


class Lying:
    """A filesystem of one file, whose size is what a test wants it to be."""

    def __init__(self, size: Any) -> None:
        self._size = size
        self._fs = fsspec.filesystem("memory", skip_instance_cache=True)
        self._fs.pipe_file("/lying/w", CONTENT)

    def size(self, _path: str) -> Any:
        return self._size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fs, name)


@pytest.mark.parametrize("digest", ["", DIGEST])
@pytest.mark.parametrize("listed", [True, False])
def test_a_negative_size_is_refused(tmp_path: Path, digest: str, listed: bool) -> None:
    fs = Lying(-5)
    size = -5 if listed else None
    file = RemoteFile("w", "x://w", fsspec_opener(fs, "/lying/w", size), size, digest=digest)
    with unfinished(tmp_path / "part") as into, pytest.raises(InvalidArgumentError, match="reported to have -5 bytes"):
        download_file(file, into, DownloadContext(2), most=1 << 30)


@pytest.mark.parametrize("size", [1 << 62, 1 << 70])
def test_a_size_beyond_the_limit_is_refused_before_anything_is_read(tmp_path: Path, size: int) -> None:
    file = RemoteFile("w", "x://w", fsspec_opener(Lying(size), "/lying/w", None), digest=DIGEST)
    with unfinished(tmp_path / "part") as into, pytest.raises(InvalidArgumentError, match="the limit is 1073741824"):
        download_file(file, into, DownloadContext(2), most=1 << 30)


def test_a_store_that_knows_no_size_is_read_whole(tmp_path: Path) -> None:
    file = RemoteFile("w", "x://w", fsspec_opener(Lying(None), "/lying/w", None), digest=DIGEST)
    with unfinished(tmp_path / "part") as into:
        assert download_file(file, into, DownloadContext(2), most=1 << 30)[1] == len(CONTENT)


def test_the_stream_of_an_empty_file_asks_for_no_range(tmp_path: Path) -> None:
    asked: list[str] = []

    class Empty(Lying):
        def cat_file(self, *_: Any, **__: Any) -> bytes:
            asked.append("range")
            return b""

    opener = fsspec_opener(Empty(0), "/lying/w", None)
    stream: ByteStream
    with opener(0, 8) as stream:
        assert (stream.size, stream.readinto(memoryview(bytearray(8)))) == (0, 0)
    assert asked == []
