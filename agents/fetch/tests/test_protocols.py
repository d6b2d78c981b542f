"""Each protocol, against a server that the test starts."""

import os
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from agents.fetch.tests.servers import Hub, Registry, Tracking, git_sha1, sha256, tar
from repoagent.errors import RepoAgentError
from tests.file_server import FileServer

Fetch = Callable[..., dict[str, bytes]]
WEIGHTS = os.urandom(300_000)
FILES = {"model.onnx": WEIGHTS, "labels/names.txt": b"a\nb\n"}
EXPECTED = {"1/model.onnx": WEIGHTS, "1/labels/names.txt": b"a\nb\n"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with Hub(page=1) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", hub.large.host)
        hub.models["acme/fraud"] = dict(FILES)
        yield hub


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


@pytest.fixture
def tracking(monkeypatch: pytest.MonkeyPatch) -> Iterator[Tracking]:
    with Tracking() as tracking:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
        tracking.artifacts = {f"1/models/m-1/artifacts/{path}": content for path, content in FILES.items()}
        yield tracking


@pytest.fixture
def bucket(s3_endpoint: str, s3_credentials: None) -> str:
    import s3fs

    fs = s3fs.S3FileSystem(endpoint_url=s3_endpoint, use_listings_cache=False)
    name = f"bucket-{uuid.uuid4().hex}"
    fs.mkdir(name)
    for path, content in FILES.items():
        fs.pipe_file(f"{name}/fraud/{path}", content)
    return f"s3://{s3_endpoint}/{name}/fraud"


def s3fs_of(url: str) -> tuple[Any, str]:
    """The filesystem behind the URL of a bucket, and the path in it."""
    import s3fs

    endpoint, _, path = url.removeprefix("s3://http://").partition("/")
    return s3fs.S3FileSystem(endpoint_url=f"http://{endpoint}", use_listings_cache=False), path


# -- the Hugging Face hub ---------------------------------------------------------------------------------------------


def test_a_model_of_the_hub_comes_at_its_commit_and_then_offline(
    fetch: Fetch, hub: Hub, notes: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"hf://acme/fraud@{hub.commit}"
    assert fetch({"url": url}) == EXPECTED
    assert f"fetched {url}; pinned" in notes
    asked = len(hub.requests) + len(hub.large.requests)
    monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
    assert fetch({"url": url}) == EXPECTED
    assert len(hub.requests) + len(hub.large.requests) == asked


def test_the_hubs_own_client_reads_the_same_server(hub: Hub, tmp_path: Path) -> None:
    """What the test's server is worth."""
    from huggingface_hub import HfApi, hf_hub_download

    found = {
        one.path: one
        for one in HfApi(endpoint=hub.url).list_repo_tree("acme/fraud", recursive=True, revision=hub.commit)
    }
    assert found["model.onnx"].lfs.sha256 == sha256(WEIGHTS).removeprefix("sha256:")  # type: ignore[union-attr]
    assert found["labels/names.txt"].blob_id == git_sha1(b"a\nb\n")  # type: ignore[union-attr]
    path = hf_hub_download("acme/fraud", "labels/names.txt", revision=hub.commit, cache_dir=tmp_path, endpoint=hub.url)
    assert Path(path).read_bytes() == b"a\nb\n"


def test_a_private_model_needs_a_token_by_reference_which_the_storage_of_large_files_never_sees(
    fetch: Fetch, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.token = "hf_secret"
    url = f"hf://acme/fraud@{hub.commit}"
    with pytest.raises(RepoAgentError, match=r"access to model acme/fraud of the hub is refused \(HTTP 401\)"):
        fetch({"url": url})
    monkeypatch.setenv("MY_TOKEN", "hf_secret")
    assert fetch({"url": url, "token": "env:MY_TOKEN"}) == EXPECTED
    assert "hf_secret" not in str(hub.large.seen_headers)


def test_a_branch_is_refused_unless_the_policy_allows_it(fetch: Fetch, hub: Hub, notes: list[str]) -> None:
    with pytest.raises(RepoAgentError, match="revision 'main' of model acme/fraud of the hub may change at any time"):
        fetch({"url": "hf://acme/fraud"})
    with pytest.raises(RepoAgentError, match="only the operator's policy can allow that"):
        fetch({"url": "hf://acme/fraud@main", "floating": "true"}, demanded=False)
    assert fetch({"url": "hf://acme/fraud@main", "floating": "true"}) == EXPECTED
    assert f"fetched hf://acme/fraud@{hub.commit}; not pinned: it may be another model tomorrow" in notes


@pytest.mark.parametrize("lie", ["model.onnx", "labels/names.txt"])
def test_a_file_of_the_hub_that_is_not_what_its_listing_promises_is_refused(fetch: Fetch, hub: Hub, lie: str) -> None:
    entry = hub._entry
    hub._entry = lambda path, content: entry(path, content[::-1] if path == lie else content)  # type: ignore[method-assign]
    with pytest.raises(RepoAgentError, match="has the digest"):
        fetch({"url": f"hf://acme/fraud@{hub.commit}"})


def test_parts_of_a_model_go_where_they_are_wanted(fetch: Fetch, hub: Hub) -> None:
    url = f"hf://acme/fraud@{hub.commit}"
    assert fetch({"url": url, "include": "*.onnx", "into": "7"}) == {"7/model.onnx": WEIGHTS}
    assert fetch({"url": f"{url}/labels"}) == {"1/names.txt": b"a\nb\n"}
    found = fetch({"url": url, "file": "labels/names.txt:labels.txt"})
    assert sorted(found) == ["1/model.onnx", "labels.txt"]


# -- container registries ---------------------------------------------------------------------------------------------


def test_a_modelpack_comes_by_its_digest(fetch: Fetch, registry: Registry, notes: list[str]) -> None:
    kind = "application/vnd.cncf.model"
    layers = [
        registry.layer("m/fraud", f"{kind}.weight.v1.raw", WEIGHTS, **{"org.cncf.model.filepath": "model.onnx"}),
        registry.layer("m/fraud", f"{kind}.doc.v1.tar", tar({"labels/names.txt": b"a\nb\n"})),
    ]
    digest = registry.push("m/fraud", layers, config=f"{kind}.config.v1+json")
    url = f"oci://{registry.host}/m/fraud@{digest}"
    assert fetch({"url": url}) == EXPECTED
    assert f"fetched {url}; pinned; oci: a container registry" in notes


def test_a_kitops_modelkit_comes(fetch: Fetch, registry: Registry) -> None:
    kind = "application/vnd.kitops.modelkit"
    layers = [
        registry.layer("kit", f"{kind}.model.v1.tar+gzip", tar({"./model.onnx": WEIGHTS}, "w:gz")),
        registry.layer("kit", f"{kind}.docs.v1.tar", tar({"labels/names.txt": b"a\nb\n"})),
    ]
    digest = registry.push("kit", layers, config=f"{kind}.config.v1+json")
    assert fetch({"url": f"oci://{registry.host}/kit@{digest}"}) == EXPECTED


def test_an_image_of_a_model_comes_without_the_rest_of_the_image(fetch: Fetch, registry: Registry) -> None:
    kind = "application/vnd.oci.image.layer.v1.tar"
    layers = [
        registry.layer(
            "car", f"{kind}+gzip", tar({"bin/sh": b"x", "models/old": b"x", "models/model.onnx": b"x"}, "w:gz")
        ),
        registry.layer("car", kind, tar({"models/model.onnx": WEIGHTS, "models/.wh.old": b""})),
        registry.layer("car", kind, tar({"models/labels/names.txt": b"a\nb\n"})),
    ]
    manifest = registry.push("car", layers, config="application/vnd.oci.image.config.v1+json", tag="amd64")
    size = len(registry.files[f"/v2/car/manifests/{manifest}"])
    kind = "application/vnd.oci.image.index.v1+json"
    entries = [
        {
            "mediaType": "application/vnd.oci.image.manifest.v1+json",
            "digest": manifest,
            "size": size,
            "platform": {"architecture": name, "os": "linux"},
        }
        for name in ("s390x", "amd64", "arm64")
    ]
    digest = registry.push_manifest("car", {"schemaVersion": 2, "mediaType": kind, "manifests": entries}, kind=kind)
    assert fetch({"url": f"oci://{registry.host}/car@{digest}"}) == EXPECTED


def test_plain_layers_with_titles_come(fetch: Fetch, registry: Registry) -> None:
    title = "org.opencontainers.image.title"
    layers = [
        registry.layer("plain", "application/octet-stream", WEIGHTS, **{title: "model.onnx"}),
        registry.layer(
            "plain",
            "application/vnd.oci.image.layer.v1.tar+gzip",
            tar({"labels/names.txt": b"a\nb\n"}, "w:gz"),
            **{title: "labels", "io.deis.oras.content.unpack": "true"},
        ),
    ]
    digest = registry.push("plain", layers)
    assert fetch({"url": f"oci://{registry.host}/plain@{digest}"}) == EXPECTED
    with pytest.raises(RepoAgentError, match="the tag 'v1' of plain may change at any time"):
        fetch({"url": f"oci://{registry.host}/plain:v1"})
    assert fetch({"url": f"oci://{registry.host}/plain:v1", "floating": "true"}) == EXPECTED


def test_a_registry_with_tokens_that_end_while_a_model_comes(
    fetch: Fetch, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry.secret, registry.uses = "user:password", 12
    title = "org.opencontainers.image.title"
    big = os.urandom(20 << 20)
    layers = [registry.layer("p", "application/octet-stream", big, **{title: "model.onnx"})]
    layers += [registry.layer("p", "a/b", b"%d" % n, **{title: f"{n}"}) for n in range(10)]
    digest = registry.push("p", layers)
    url = f"oci://{registry.host}/p@{digest}"
    with pytest.raises(RepoAgentError, match=r"access to .* is refused"):
        fetch({"url": url})
    monkeypatch.setenv("REGISTRY_USER", "user")
    monkeypatch.setenv("REGISTRY_PASSWORD", "password\n")
    found = fetch({"url": url, "username": "env:REGISTRY_USER", "password": "env:REGISTRY_PASSWORD"})
    assert found["1/model.onnx"] == big
    assert len(found) == 11
    assert registry.token >= 2


def test_oracles_spelling_is_not_taken_for_a_registry(fetch: Fetch) -> None:
    with pytest.raises(RepoAgentError, match=r"not a model in a .*Oracle's object storage is another"):
        fetch({"url": "oci://bucket@namespace/path"})


# -- MLflow -----------------------------------------------------------------------------------------------------------


def test_a_version_of_an_mlflow_registry_comes(fetch: Fetch, tracking: Tracking) -> None:
    with pytest.raises(RepoAgentError, match="the registry keeps none"):
        fetch({"url": "models:/fraud/3"})
    assert fetch({"url": "models:/fraud/3", "floating": "true"}) == EXPECTED
    assert fetch({"url": "models:/fraud@champion", "floating": "true"}) == EXPECTED
    pinned = {"url": "models:/fraud/3", "digest": f"model.onnx={sha256(WEIGHTS)}"}
    assert fetch(pinned) == {"1/model.onnx": WEIGHTS}
    with pytest.raises(RepoAgentError, match="there is no model fraud of the MLflow registry"):
        fetch({"url": "models:/fraud/4", "floating": "true"})


@pytest.mark.slow
def test_a_version_whose_artifacts_are_in_a_bucket_comes_from_there(
    fetch: Fetch, tracking: Tracking, bucket: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracking.place = bucket
    monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", "127.0.0.1")
    assert fetch({"url": "models:/fraud/3", "floating": "true"}) == EXPECTED
    tracking.place = "file:///etc"
    with pytest.raises(RepoAgentError, match="lies in a directory of its server"):
        fetch({"url": "models:/fraud/3", "floating": "true"})


# -- buckets and web servers ------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_in_a_bucket_comes_by_tritons_spelling(fetch: Fetch, bucket: str) -> None:
    digests = [f"{path}={sha256(content)}" for path, content in FILES.items()]
    assert fetch({"url": bucket, "digest": digests}) == EXPECTED
    store, name = s3fs_of(bucket)
    store.pipe_file(f"{name}/empty", b"")
    assert fetch({"url": bucket, "digest": f"empty={sha256(b'')}"}) == {"1/empty": b""}
    store.rm_file(f"{name}/empty")
    assert fetch({"url": bucket, "floating": "true"}) == EXPECTED
    assert fetch({"url": bucket, "floating": "true", "include": "labels/*"}) == {"1/labels/names.txt": b"a\nb\n"}
    with pytest.raises(RepoAgentError, match="give 'digest' for each file"):
        fetch({"url": bucket})


@pytest.mark.parametrize("ranges", [True, False])
def test_a_model_on_a_web_server_comes_by_the_digest_of_its_list(
    fetch: Fetch, ranges: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = "".join(f"{sha256(content)[7:]}  {path}\n" for path, content in FILES.items()).encode()
    with FileServer({f"/m/{path}": content for path, content in FILES.items()}) as server:
        server.ranges = ranges
        server.files["/m/SHA256SUMS"] = listing
        parameters = {"url": f"{server.url}/m/", "manifest": f"SHA256SUMS={sha256(listing)}"}
        assert fetch(parameters) == {**EXPECTED, "1/SHA256SUMS": listing}
        asked = len(server.requests)
        monkeypatch.setenv("REPOAGENT_OFFLINE", "1")
        assert fetch(parameters) == {**EXPECTED, "1/SHA256SUMS": listing}
        assert len(server.requests) == asked


def test_one_file_of_a_web_server_comes(fetch: Fetch) -> None:
    with FileServer({"/w/model.onnx": WEIGHTS}) as server:
        url = f"{server.url}/w/model.onnx"
        assert fetch({"url": url, "digest": f"model.onnx={sha256(WEIGHTS)}"}) == {"1/model.onnx": WEIGHTS}
        assert fetch({"url": url, "floating": "true", "file": "model.onnx:3/x.onnx"}) == {"3/x.onnx": WEIGHTS}


def test_a_model_names_no_host_that_is_not_public(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    with FileServer({"/model.onnx": WEIGHTS}) as server:
        parameters = {"url": f"{server.url}/model.onnx", "digest": f"model.onnx={sha256(WEIGHTS)}"}
        with pytest.raises(RepoAgentError, match="not a public address"):
            fetch(parameters, demanded=False)
        assert server.requests == []
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", server.host)
        assert fetch(parameters, demanded=False) == {"1/model.onnx": WEIGHTS}


def test_a_file_of_the_model_itself_is_not_replaced(fetch: Fetch, hub: Hub, tmp_path: Path) -> None:
    own: Any = tmp_path / "repository" / "m" / "1" / "model.onnx"
    own.parent.mkdir()
    own.write_bytes(b"mine")
    with pytest.raises(RepoAgentError, match=r"the model has '1/model\.onnx' itself"):
        fetch({"url": f"hf://acme/fraud@{hub.commit}"})
    assert fetch({"url": f"hf://acme/fraud@{hub.commit}", "into": "2"})["1/model.onnx"] == b"mine"


def test_a_place_that_is_unknown_is_refused(fetch: Fetch) -> None:
    for url in ("ftp://host/x", "file:///etc", "/etc/passwd", "memory://x", "simplecache::s3://b/x"):
        with pytest.raises(RepoAgentError, match="is not a place to fetch from; expected one of hf://"):
            fetch({"url": url, "floating": "true"})
