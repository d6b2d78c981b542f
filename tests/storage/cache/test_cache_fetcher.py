from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from repoagent.errors import NotFoundError
from repoagent.storage.cache.cache import Cache, Fetcher
from repoagent.storage.files.files import SourceFiles
from repoagent.storage.repositories.sources import MemorySource, ModelSource, Repository

Read = Callable[[Path], dict[str, bytes]]


def _no_directory(size: int) -> Path:
    raise AssertionError("wanted a workspace although the cache can hold it")


@pytest.fixture
def on_s3(s3_bucket: Any) -> ModelSource:
    s3_bucket.put({"repo/m/config.pbtxt": b"c", "repo/m/1/w": b"one", "repo/m/2/w": b"two"})
    source = Repository.open(s3_bucket.url("repo")).model("m")
    assert source is not None
    return source


def test_a_remote_model_comes_through_the_cache_and_survives_a_restart(
    on_s3: ModelSource, tmp_path: Path, read_tree: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Cache(tmp_path / "cache") as cache:
        first = Fetcher(on_s3, directory=_no_directory, cache=cache.scope())()
        assert read_tree(first) == {"config.pbtxt": b"c", "1/w": b"one", "2/w": b"two"}
    monkeypatch.setattr("repoagent.storage.cache.cache.download_files", _no_directory)
    with Cache(tmp_path / "cache") as cache:
        assert Fetcher(on_s3, directory=_no_directory, cache=cache.scope())() == first


def test_a_changed_model_is_another_entry_of_the_cache(on_s3: ModelSource, s3_bucket: Any, tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        first = Fetcher(on_s3, directory=_no_directory, cache=cache.scope())("1")
        s3_bucket.put({"repo/m/1/w": b"new"})
        second = Fetcher(on_s3, directory=_no_directory, cache=cache.scope())("1")
        assert ((first / "w").read_bytes(), (second / "w").read_bytes()) == (b"one", b"new")


def test_without_a_cache_a_model_goes_to_a_directory_whose_size_is_told(
    on_s3: ModelSource, tmp_path: Path, read_tree: Read
) -> None:
    sizes: list[int] = []
    fetcher = Fetcher(on_s3, directory=lambda size: sizes.append(size) or tmp_path)  # type: ignore[func-returns-value]
    assert read_tree(fetcher("1")) == {"w": b"one"}
    assert fetcher("1") == fetcher("1")
    assert read_tree(fetcher("")) == {"config.pbtxt": b"c", "1/w": b"one", "2/w": b"two"}
    assert sizes == [3, 7]


def test_a_model_in_memory_is_never_cached(tmp_path: Path, read_tree: Read) -> None:
    source = MemorySource("m", {"1/w": b"one"})
    with Cache(tmp_path / "cache") as cache:
        path = Fetcher(source, directory=lambda size: tmp_path, cache=cache.scope())()
    assert read_tree(path) == {"1/w": b"one"}
    assert not (tmp_path / "cache").exists()


def test_a_version_that_is_not_there_is_not_found(on_s3: ModelSource, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no directory '9'"):
        Fetcher(on_s3, directory=lambda size: tmp_path)("9")


def test_a_backend_gets_the_version_it_asks_for_from_s3(on_s3: ModelSource, tmp_path: Path) -> None:
    with Cache(tmp_path / "cache") as cache:
        files = SourceFiles(on_s3, Fetcher(on_s3, directory=_no_directory, cache=cache.scope()))
        assert files.bytes("2/w") == b"two"
        assert files.local_path("1/w").read_bytes() == b"one"
        assert files.names("1") == ["w"]
