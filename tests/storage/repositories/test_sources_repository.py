import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pytest

from repoagent.api.report import ArtifactType
from repoagent.errors import InvalidArgumentError, NotFoundError, UnavailableError, UnsafePathError, UnsupportedError
from repoagent.storage.repositories.sources import Repository

Write = Callable[[Path, dict[str, bytes]], Path]
_FILES = {"m/config.pbtxt": b'name: "m"', "m/1/model.onnx": b"one", "m/10/model.onnx": b"ten", "m/2/model.onnx": b"two"}


def test_a_local_repository_lists_directories_and_no_files_or_hidden_ones(tmp_path: Path, write_tree: Write) -> None:
    write_tree(tmp_path / "repo", {"b/x": b"", "a/x": b"", ".git/x": b"", "README.md": b""})
    repository = Repository.open(str(tmp_path / "repo"))
    assert repository.model_names() == ["a", "b"]
    assert not repository.is_remote
    assert repository.url == str(tmp_path / "repo")


def test_a_directory_whose_name_is_no_text_is_left_out_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    os.mkdir(os.fsencode(tmp_path) + b"/bad\xffname")
    (tmp_path / "good").mkdir()
    repository = Repository.open(str(tmp_path))
    assert [repository.model_names() for _ in range(3)] == [["good"]] * 3
    told = f"the directory 'bad\\udcffname' of {tmp_path} is not a model: its name is not UTF-8; rename it"
    assert caplog.messages == [told]
    with pytest.raises(InvalidArgumentError, match=r"'bad\\udcffname' cannot be the name of a model: it is not UTF-8"):
        repository.model("bad\udcffname")


def test_a_local_model_gives_config_versions_and_location(tmp_path: Path, write_tree: Write) -> None:
    write_tree(tmp_path, {**_FILES, "m/03/x": b"", "m/latest/x": b"", "m/99999999999999999999/x": b""})
    model = Repository.open(f"file://{tmp_path}").model("m")
    assert model is not None
    assert model.artifact_type is ArtifactType.FILESYSTEM
    assert model.location == model.root == str(tmp_path / "m")
    assert model.read_config_text() == 'name: "m"'
    assert model.read_config_text("other.pbtxt") is None
    assert model.versions() == [1, 2, 10]


def test_a_model_directory_may_be_a_link_but_a_link_in_it_may_not_leave(tmp_path: Path, write_tree: Write) -> None:
    write_tree(tmp_path / "elsewhere", {"config.pbtxt": b"", "1/model.onnx": b"x"})
    write_tree(tmp_path, {"secret": b"hush"})
    (tmp_path / "repo").mkdir()
    (tmp_path / "repo" / "m").symlink_to("../elsewhere")
    repository = Repository.open(str(tmp_path / "repo"))
    model = repository.model("m")
    assert repository.model_names() == ["m"]
    assert model is not None
    assert model.fingerprint().files == 2
    (tmp_path / "elsewhere" / "leak").symlink_to("../secret")
    with pytest.raises(UnsafePathError, match="leak"):
        model.fingerprint()
    with pytest.raises(UnsafePathError):
        model.read_config_text("leak")


def test_a_loop_of_links_is_refused(tmp_path: Path, write_tree: Write) -> None:
    write_tree(tmp_path / "m", {"1/x": b""})
    (tmp_path / "m/1/up").symlink_to("..")
    model = Repository.open(str(tmp_path)).model("m")
    assert model is not None
    with pytest.raises(UnsafePathError, match="above it"):
        model.entries()


@pytest.mark.slow
def test_ten_thousand_models_are_indexed(tmp_path: Path) -> None:
    for number in range(10_000):
        (tmp_path / f"model-{number}").mkdir()
    repository = Repository.open(str(tmp_path))
    assert len(repository.model_names()) == 10_000


@pytest.mark.parametrize("name", ["..", "a/b", "", "/etc"])
def test_a_model_name_that_is_no_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UnsafePathError):
        Repository.open(str(tmp_path)).model(name)


def test_what_is_not_there_is_said(tmp_path: Path) -> None:
    assert Repository.open(str(tmp_path)).model("absent") is None
    with pytest.raises(NotFoundError, match="absent"):
        Repository.open(str(tmp_path / "absent")).model_names()


def test_a_memory_repository_works_like_any_other() -> None:
    fs = fsspec.filesystem("memory")
    for path, content in _FILES.items():
        fs.pipe_file(f"/test-repository/{path}", content)
    repository = Repository.open("memory://test-repository")
    model = repository.model("m")
    assert repository.is_remote
    assert repository.model_names() == ["m"]
    assert model is not None
    assert model.artifact_type is ArtifactType.REMOTE_FILESYSTEM
    assert model.location == "memory://test-repository/m"
    assert model.read_config_text() == 'name: "m"'
    assert model.versions() == [1, 2, 10]


@pytest.mark.slow
def test_an_s3_repository_in_tritons_spelling(s3_bucket: Any) -> None:
    s3_bucket.put(
        {f"models/{path}": content for path, content in _FILES.items()} | {"models/m2/1/x": b"", "other/1": b""}
    )
    repository = Repository.open(s3_bucket.url("models"))
    model = repository.model("m")
    assert repository.model_names() == ["m", "m2"]
    assert model is not None
    assert model.location == s3_bucket.url("models/m")
    assert model.read_config_text() == 'name: "m"'
    assert model.read_config_text("absent.pbtxt") is None
    assert model.versions() == [1, 2, 10]
    assert model.fingerprint().files == 4
    assert repository.model("absent") is None


def test_an_s3_repository_shows_changes_at_once(s3_bucket: Any) -> None:
    s3_bucket.put({"models/a/1/x": b"one"})
    repository = Repository.open(s3_bucket.url("models"))
    model = repository.model("a")
    assert model is not None
    before = model.fingerprint()
    assert model.fingerprint() == before
    assert repository.model_names() == ["a"]
    s3_bucket.put({"models/b/1/x": b"", "models/a/1/x": b"two"})
    assert repository.model_names() == ["a", "b"]
    assert model.fingerprint() != before


def test_the_marker_objects_of_directories_are_no_files(s3_bucket: Any) -> None:
    s3_bucket.put({"models/a/1/x": b"1"})
    s3_bucket.fs.call_s3("put_object", Bucket=s3_bucket.name, Key="models/a/1/")
    s3_bucket.fs.call_s3("put_object", Bucket=s3_bucket.name, Key="models/a/")
    model = Repository.open(s3_bucket.url("models")).model("a")
    assert model is not None
    assert [entry.path for entry in model.entries()] == ["1/x"]


def test_a_bucket_that_is_not_there_and_a_server_that_is_not_there(s3_bucket: Any) -> None:
    with pytest.raises(NotFoundError, match="nowhere"):
        Repository.open(s3_bucket.url().replace(s3_bucket.name, "nowhere")).model_names()
    dead = Repository.open(
        "s3://http://127.0.0.1:9/bucket", storage_options={"config_kwargs": {"retries": {"max_attempts": 0}}}
    )
    with pytest.raises(UnavailableError, match="127"):
        dead.model_names()


@pytest.mark.parametrize(
    ("url", "module", "extra"),
    [("gs://b/p", "gcsfs", "gcs"), ("as://a/c", "adlfs", "azure"), ("hf://o/r", "huggingface_hub", "hf"),
     ("s3://b/p", "s3fs", "s3")],
)  # fmt: skip
def test_a_missing_filesystem_names_the_extra(
    url: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = importlib.import_module("fsspec.registry")
    monkeypatch.delitem(registry._registry, "abfs" if url.startswith("as:") else url[:2], raising=False)
    for name in [name for name in sys.modules if name == module or name.startswith(module + ".")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UnsupportedError, match=rf"pip install '\.\[{extra}\]'"):
        Repository.open(url)


class NeedsHost:
    def __init__(self, host: str, **options: object) -> None:
        self.host = host


def test_a_filesystem_that_needs_more_than_a_path_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match=r"cannot open the needy:// filesystem: TypeError: .* 'host'"):
        Repository.open("needy://models/p", filesystems={"needy": f"{__name__}:NeedsHost"})


def test_an_unknown_protocol_is_refused_and_a_plug_in_can_bring_it() -> None:
    with pytest.raises(InvalidArgumentError, match="plugged"):
        Repository.open("plugged://x")
    target = "fsspec.implementations.memory:MemoryFileSystem"
    repository = Repository.open("plugged:///x", filesystems={"plugged": target})
    assert repository.url == "plugged://x"
