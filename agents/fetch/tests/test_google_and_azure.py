"""``gs://``, ``az://`` and ``as://``: the stores' own clients, against servers of the test."""

import importlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from agents.fetch.tests.clouds import ACCOUNT, AzureBlobs, GoogleStorage
from agents.fetch.tests.servers import sha256
from repoagent.errors import RepoAgentError
from repoagent.storage.repositories.filesystems import open_filesystem
from repoagent.storage.repositories.url import parse_url

pytest.importorskip("gcsfs")
pytest.importorskip("adlfs")

Fetch = Callable[..., dict[str, bytes]]
WEIGHTS = (os.urandom(1_000_003) * 19)[: 17 << 20]  # three ranges
FILES = {"model.onnx": WEIGHTS, "labels/names.txt": b"a\nb\n", "empty": b"", "labels/r\u00e9sum\u00e9 & more.txt": b"x"}
EXPECTED = {f"1/{path}": content for path, content in FILES.items()}
DIGESTS = [f"{path}={sha256(content)}" for path, content in FILES.items()]


@pytest.fixture
def google(monkeypatch: pytest.MonkeyPatch) -> Iterator[GoogleStorage]:
    with GoogleStorage() as storage:
        monkeypatch.setenv("STORAGE_EMULATOR_HOST", storage.url)
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        storage.objects = {f"models/fraud/{path}": content for path, content in FILES.items()}
        yield storage


@pytest.fixture
def azure(monkeypatch: pytest.MonkeyPatch) -> Iterator[AzureBlobs]:
    with AzureBlobs() as blobs:
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", blobs.connection)
        blobs.objects = {f"models/fraud/{path}": content for path, content in FILES.items()}
        yield blobs


@pytest.mark.slow
@pytest.mark.parametrize("url", ["gs://models/fraud", "gs://models/fraud/", "gcs://models/fraud"])
def test_a_model_in_a_bucket_of_google_comes(fetch: Fetch, google: GoogleStorage, url: str) -> None:
    google.page = 1
    assert fetch({"url": url, "floating": "true"}) == EXPECTED
    assert fetch({"url": url, "digest": DIGESTS}) == EXPECTED
    assert fetch({"url": url, "floating": "true", "include": "labels/*"}) == {
        path: content for path, content in EXPECTED.items() if "labels" in path
    }


@pytest.mark.slow
@pytest.mark.parametrize("url", ["az://models/fraud", f"as://{ACCOUNT}.blob.core.windows.net/models/fraud"])
def test_a_model_in_a_container_of_azure_comes(fetch: Fetch, azure: AzureBlobs, url: str) -> None:
    azure.page = 1
    assert fetch({"url": url, "floating": "true"}) == EXPECTED
    assert fetch({"url": url, "digest": DIGESTS}) == EXPECTED
    assert azure.refusals == 0


@pytest.mark.slow
def test_large_files_come_in_ranges(fetch: Fetch, google: GoogleStorage, azure: AzureBlobs) -> None:
    for store, url in ((google, "gs://models/fraud"), (azure, "az://models/fraud")):
        fetch({"url": url, "floating": "true", "include": "model.onnx"})
        asked = [one for one in store.seen_headers if one.get("Range") or one.get("x-ms-range")]
        assert len(asked) >= 3


@pytest.mark.slow
def test_what_is_in_the_cache_is_not_asked_for_again(
    fetch: Fetch, google: GoogleStorage, azure: AzureBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    for store, url in ((google, "gs://models/fraud"), (azure, "az://models/fraud")):
        fetch({"url": url, "digest": DIGESTS})
        store.objects.clear()
        assert fetch({"url": url, "digest": DIGESTS}) == EXPECTED
    monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
    assert fetch({"url": "gs://models/fraud", "digest": DIGESTS}) == EXPECTED


@pytest.mark.slow
@pytest.mark.parametrize("lie", [b"", b"other", WEIGHTS[:-1] + b"x"])
def test_another_content_is_refused(fetch: Fetch, google: GoogleStorage, azure: AzureBlobs, lie: bytes) -> None:
    for store, url in ((google, "gs://models/fraud"), (azure, "az://models/fraud")):
        store.objects["models/fraud/model.onnx"] = lie
        with pytest.raises(RepoAgentError, match="has the digest sha256:"):
            fetch({"url": url, "digest": DIGESTS})


def test_a_place_that_is_not_there_is_reported(fetch: Fetch, google: GoogleStorage, azure: AzureBlobs) -> None:
    for url in ("gs://models/other", "az://models/other", "gs://other/x", "az://other/x"):
        with pytest.raises(RepoAgentError, match=r"no file|not found|no such|does not exist|there is no"):
            fetch({"url": url, "floating": "true"})


def test_a_key_that_is_not_the_accounts_is_refused_with_the_reason(
    fetch: Fetch, azure: AzureBlobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", azure.connection.replace("AccountKey=", "AccountKey=AAAA"))
    with pytest.raises(RepoAgentError, match=r"access|refused|Authenticat|authoriz") as raised:
        fetch({"url": "az://models/fraud", "floating": "true"})
    assert "AccountKey" not in str(raised.value)


@pytest.mark.parametrize("name", ["../escaped", "a/../../escaped", "/escaped", "a//escaped", "./escaped"])
def test_names_that_lead_out_are_refused(
    fetch: Fetch, google: GoogleStorage, azure: AzureBlobs, name: str, tmp_path: Path
) -> None:
    for store, url in ((google, "gs://models/fraud"), (azure, "az://models/fraud")):
        store.objects = {f"models/fraud/{name}": b"x"}
        try:
            found = fetch({"url": url, "floating": "true"})
        except RepoAgentError:
            continue
        # The store's own client may leave such a name out, or clean it: then it is inside.
        assert all(path.startswith("1/") and ".." not in path for path in found)
    assert [path for path in tmp_path.rglob("*escaped*") if f"{tmp_path}/cache/" not in str(path)] == []
    assert not list(tmp_path.parent.glob("*escaped*"))


@pytest.mark.slow
@pytest.mark.parametrize("size", ["-5", "18446744073709551616", "x"])
def test_sizes_that_no_file_has_are_refused(
    fetch: Fetch, google: GoogleStorage, monkeypatch: pytest.MonkeyPatch, size: str
) -> None:
    plain = GoogleStorage._resource
    monkeypatch.setattr(GoogleStorage, "_resource", lambda *given: {**plain(*given), "size": size})
    with pytest.raises(RepoAgentError):
        fetch({"url": "gs://models/fraud", "floating": "true"})
    with pytest.raises(RepoAgentError):
        fetch({"url": "gs://models/fraud", "digest": DIGESTS})


@pytest.mark.parametrize(("given", "module"), [("", "gcsfs.core"), ("false", "gcsfs.core"), ("true", "gcsfs")])
def test_google_is_asked_for_the_kind_of_a_bucket_only_by_those_who_want_it(
    google: GoogleStorage, monkeypatch: pytest.MonkeyPatch, given: str, module: str
) -> None:
    """That question goes over gRPC, before each range if there is no answer: it hung where only HTTP gets through."""
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", given)
    kind = type(open_filesystem(parse_url("gs://models/fraud")))
    assert kind is importlib.import_module(module).GCSFileSystem
