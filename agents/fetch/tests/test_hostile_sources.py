"""A registry, a hub or an archive that lies: nothing leaves the model's directory, and nothing is loaded."""

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from repoagent_fetch.registry import parse

from agents.fetch.tests.servers import Hub, Registry, Tracking, sha256, tar
from repoagent.errors import RepoAgentError
from tests.file_server import FileServer, Request

Fetch = Callable[..., dict[str, bytes]]
TITLE = "org.opencontainers.image.title"
IMAGE = "application/vnd.oci.image.config.v1+json"
LAYER = "application/vnd.oci.image.layer.v1.tar"


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry() as registry:
        yield registry


def refused(fetch: Fetch, registry: Registry, layers: list[dict[str, Any]], text: str, *, config: str = "") -> None:
    digest = registry.push("evil", layers, config=config)
    with pytest.raises(RepoAgentError, match=text):
        fetch({"url": f"oci://{registry.host}/evil@{digest}"})


def outside(tmp_path: Path) -> list[str]:
    return [str(path) for path in tmp_path.rglob("*escaped*")]


@pytest.mark.parametrize(
    "name", ["../escaped", "/escaped", "a/../../escaped", "a//escaped", "./escaped", "..", "x\0escaped"]
)
def test_titles_that_lead_out_are_refused(fetch: Fetch, registry: Registry, tmp_path: Path, name: str) -> None:
    layer = registry.layer("evil", "a/b", b"x", **{TITLE: name})
    refused(fetch, registry, [layer], "contains|absolute|plain relative|NUL|cannot be|two")
    assert outside(tmp_path) == []


@pytest.mark.parametrize(
    "name",
    ["../escaped", "a/../../escaped", "a/./escaped", "a//escaped", "../.wh.config.pbtxt", ".wh...", "a/.wh."],
)
def test_names_in_archives_that_lead_out_are_refused(
    fetch: Fetch, registry: Registry, tmp_path: Path, name: str
) -> None:
    refused(
        fetch,
        registry,
        [registry.layer("evil", LAYER, tar({f"models/{name}": b"x"}))],
        "not a plain path",
        config=IMAGE,
    )
    assert outside(tmp_path) == []


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.GNUTYPE_SPARSE]
)
def test_links_and_special_files_in_archives_are_refused(fetch: Fetch, registry: Registry, kind: bytes) -> None:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode="w") as archive:
        info = tarfile.TarInfo("models/model.onnx")
        info.type, info.linkname = kind, "/etc/passwd"
        archive.addfile(info)
    refused(
        fetch,
        registry,
        [registry.layer("evil", LAYER, output.getvalue())],
        "link or a special|not a valid",
        config=IMAGE,
    )


def test_a_file_and_a_directory_of_one_name_are_refused(fetch: Fetch, registry: Registry) -> None:
    layers = [
        registry.layer("evil", LAYER, tar({"models/a": b"x"})),
        registry.layer("evil", LAYER, tar({"models/a/b": b"x"})),
    ]
    refused(fetch, registry, layers, "both as a file and as a directory", config=IMAGE)
    layers = [registry.layer("evil", "a/b", b"x", **{TITLE: name}) for name in ("a", "a/b")]
    refused(fetch, registry, layers, "both a file and a directory")


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["gzip", "gzip in gzip"])
def test_a_decompression_bomb_is_not_unpacked(
    fetch: Fetch, registry: Registry, tmp_path: Path, compression: str
) -> None:
    bomb = tar({"models/model.onnx": bytes(200 << 20)}, "w:gz")
    layers = [registry.layer("evil", f"{LAYER}+gzip", gzip.compress(bomb) if "in" in compression else bomb)]
    refused(fetch, registry, layers, "more than a hundred times their size|not a valid archive", config=IMAGE)
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) < 10 << 20


def test_a_header_that_takes_all_memory_is_refused(fetch: Fetch, registry: Registry) -> None:
    info = tarfile.TarInfo("models/x")
    info.type, info.size = tarfile.XHDTYPE, 8 << 30
    layers = [registry.layer("evil", LAYER, info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))]
    refused(fetch, registry, layers, "not a valid archive: .*a header of 8589934592 bytes", config=IMAGE)


@pytest.mark.slow
def test_entries_without_end_are_refused(fetch: Fetch, registry: Registry) -> None:
    archive = tarfile.TarInfo("d").tobuf() * 100_001 + bytes(1024)
    layers = [registry.layer("evil", f"{LAYER}+gzip", gzip.compress(archive, 1))]
    refused(fetch, registry, layers, "more than 100000 entries|hundred times", config=IMAGE)


@pytest.mark.parametrize(
    "content", [b"", b"not an archive", b"\x1f\x8b" + bytes(50), tar({"models/x": b"y" * 5000})[:2000]]
)
def test_what_is_not_an_archive_is_refused(fetch: Fetch, registry: Registry, content: bytes) -> None:
    refused(fetch, registry, [registry.layer("evil", LAYER, content)], "not a valid archive|no file", config=IMAGE)


@pytest.mark.parametrize(
    ("size", "text"), [(4, "5 bytes, and 4 were"), (6, "5 bytes, and 6 were"), (1 << 50, "limit|free")]
)
def test_a_layer_that_lies_about_its_size_is_refused(fetch: Fetch, registry: Registry, size: int, text: str) -> None:
    refused(fetch, registry, [{**registry.layer("evil", "a/b", b"12345", **{TITLE: "x"}), "size": size}], text)


def test_a_layer_that_is_not_what_its_digest_promises_is_refused(fetch: Fetch, registry: Registry) -> None:
    layer = registry.layer("evil", "a/b", b"12345", **{TITLE: "x"})
    registry.files[f"/v2/evil/blobs/{layer['digest']}"] = b"54321"
    refused(fetch, registry, [layer], "has the digest sha256:")


def test_a_manifest_that_is_not_what_its_digest_promises_is_refused(fetch: Fetch, registry: Registry) -> None:
    digest = registry.push("evil", [registry.layer("evil", "a/b", b"x", **{TITLE: "x"})])
    registry.files[f"/v2/evil/manifests/{digest}"] += b" "
    with pytest.raises(RepoAgentError, match="the registry sent something else"):
        fetch({"url": f"oci://{registry.host}/evil@{digest}"})


@pytest.mark.parametrize(
    ("document", "text"),
    [
        ([], "has no 'layers'"),
        ({"layers": {}}, "not a list"),
        ({"layers": [5]}, "has no 'digest'"),
        ({"layers": [{"digest": "sha256:../../x", "size": 1, "mediaType": "a/b"}]}, "not a valid digest"),
        ({"layers": [{"digest": "md5:" + "0" * 32, "size": 1, "mediaType": "a/b"}]}, "not a valid digest"),
        ({"layers": [{"digest": "sha256:" + "0" * 64, "size": -1, "mediaType": "a/b"}]}, "not a size"),
        ({"layers": [{"digest": "sha256:" + "0" * 64, "size": True, "mediaType": "a/b"}]}, "not a size"),
        ({"layers": [{"digest": "sha256:" + "0" * 64, "size": 1, "mediaType": "a/b"}]}, "has no title"),
        ({"layers": []}, "no layers"),
    ],
)
def test_a_manifest_of_another_form_is_refused(fetch: Fetch, registry: Registry, document: Any, text: str) -> None:
    digest = registry.push_manifest("evil", document)
    with pytest.raises(RepoAgentError, match=text):
        fetch({"url": f"oci://{registry.host}/evil@{digest}"})


def test_a_manifest_without_end_is_not_read(fetch: Fetch, registry: Registry) -> None:
    digest = registry.push_manifest("evil", {"layers": [], "x": "x" * (5 << 20)})
    with pytest.raises(RepoAgentError, match="more than 4194304 bytes"):
        fetch({"url": f"oci://{registry.host}/evil@{digest}"})


def test_indexes_in_indexes_end(fetch: Fetch, registry: Registry) -> None:
    kind = "application/vnd.oci.image.index.v1+json"
    inner = registry.push_manifest("evil", {"mediaType": kind, "manifests": []}, kind=kind)
    digest = registry.push_manifest("evil", {"mediaType": kind, "manifests": [{"digest": inner}]}, kind=kind)
    with pytest.raises(RepoAgentError, match="not a manifest of an image"):
        fetch({"url": f"oci://{registry.host}/evil@{digest}"})


@pytest.mark.parametrize(
    "realm",
    ["http://169.254.169.254/token", "http://elsewhere.example/token", "file:///etc/passwd", "https://127.0.0.1:1/"],
)
def test_a_registry_that_sends_credentials_elsewhere_is_refused(
    fetch: Fetch, registry: Registry, realm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("USER_NAME", "user")
    monkeypatch.setenv("PASS_WORD", "password")

    def challenge(request: Request) -> bool:
        request.answer(401, b"{}", {"WWW-Authenticate": f'Bearer realm="{realm}",service="x"'})
        return True

    registry.handlers.insert(0, challenge)
    with pytest.raises(RepoAgentError, match=r"for a token, which is not https|not a public address"):
        fetch(
            {
                "url": f"oci://{registry.host}/evil@sha256:{'0' * 64}",
                "username": "env:USER_NAME",
                "password": "env:PASS_WORD",
            }
        )


def test_a_layer_that_redirects_to_the_inside_is_refused(fetch: Fetch, registry: Registry) -> None:
    with FileServer({"/admin": b"inside"}) as inside:
        layer = registry.layer("evil", "a/b", b"inside", **{TITLE: "x"})

        def redirect(request: Request) -> bool:
            if "/blobs/" in request.target:
                request.answer(307, headers={"Location": f"{inside.url}/admin"})
            return "/blobs/" in request.target

        registry.handlers.insert(0, redirect)
        refused(fetch, registry, [layer], "not a public address")
        assert inside.requests == []


@pytest.mark.parametrize("path", ["../escaped", "/escaped", "a/../../escaped", "a\0b"])
def test_names_of_a_hub_that_lead_out_are_refused(
    fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    with Hub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.models["acme/evil"] = {path: b"x"}
        with pytest.raises(RepoAgentError, match=r"contains|absolute|NUL|not a plain relative"):
            fetch({"url": f"hf://acme/evil@{hub.commit}"})
        assert outside(tmp_path) == []


def test_a_listing_of_a_hub_that_goes_on_elsewhere_is_not_followed(
    fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Hub() as hub, FileServer() as inside:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        hub.models["acme/evil"] = {"a": b"x"}

        def elsewhere(request: Request) -> bool:
            if "/tree/" in request.target:
                request.answer(200, b"[]", {"Link": f'<{inside.url}/x>; rel="next"'})
            return "/tree/" in request.target

        hub.handlers.insert(0, elsewhere)
        with pytest.raises(RepoAgentError, match="goes on at another server"):
            fetch({"url": f"hf://acme/evil@{hub.commit}"})
        assert inside.requests == []


def test_folders_of_mlflow_that_lead_out_or_have_no_end_are_refused(
    fetch: Fetch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Tracking() as tracking:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
        parameters = {"url": "models:/fraud/3", "floating": "true"}

        def list_as(*entries: dict[str, Any]) -> None:
            def listing(request: Request) -> bool:
                if request.target.endswith("/artifacts"):
                    request.answer(200, json.dumps({"files": entries}).encode())
                return request.target.endswith("/artifacts")

            tracking.handlers[:1] = [listing] if len(tracking.handlers) > 1 else [listing, *tracking.handlers]

        list_as({"path": "..", "is_dir": False, "file_size": 1})
        with pytest.raises(RepoAgentError, match=r"contains '\.\.'"):
            fetch(parameters)
        list_as({"path": "a", "is_dir": "yes"})
        with pytest.raises(RepoAgentError):
            fetch(parameters)
        assert outside(tmp_path) == []


def test_a_list_of_digests_that_leads_out_is_refused(fetch: Fetch, tmp_path: Path) -> None:
    for line in (f"{'0' * 64}  ../escaped", f"{'0' * 64}  /escaped", "garbage", f"\\{'0' * 64}  a\\nb"):
        content = f"{line}\n".encode()
        expected = pytest.raises(RepoAgentError, match=r"expected a plain relative path|not one of sha256sum")
        with FileServer({"/m/SUMS": content}) as server, expected:
            fetch({"url": f"{server.url}/m/", "manifest": f"SUMS={sha256(content)}"})
    assert outside(tmp_path) == []


def test_a_model_cannot_send_a_secret_of_the_server_anywhere(fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SERVERS_SECRET", "secret")
    with FileServer({"/x": b"x"}) as server:
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", server.host)
        for name in ("token", "username", "password"):
            parameters = {"url": f"{server.url}/x", "digest": f"x={sha256(b'x')}", name: "env:SERVERS_SECRET"}
            with pytest.raises(RepoAgentError, match="may only be given in the operator's policy"):
                fetch(parameters, demanded=False)
        assert server.requests == []


@pytest.mark.parametrize("host", ["localhost.example", "127.example.org", "127.0.0.1.example", "registry.example"])
def test_only_loopback_is_spoken_to_without_tls(host: str) -> None:
    assert parse(f"oci://{host}/m@sha256:{'0' * 64}").base.startswith("https://")
    assert parse(f"oci://127.0.0.1:5000/m@sha256:{'0' * 64}").base.startswith("http://")


def test_a_file_that_is_in_an_archive_as_well_is_refused(fetch: Fetch, registry: Registry) -> None:
    kind = "application/vnd.cncf.model.weight.v1"
    layers = [
        registry.layer("evil", f"{kind}.tar", tar({"x": b"1"})),
        registry.layer("evil", f"{kind}.raw", b"2", **{"org.cncf.model.filepath": "x"}),
    ]
    refused(fetch, registry, layers, "there twice")


def test_a_listing_of_a_web_server_is_not_redirected(fetch: Fetch) -> None:
    with FileServer({"/x": b"<a href='y'>y</a>"}) as inside, FileServer() as server:
        server.handlers.append(
            lambda request: request.answer(302, headers={"Location": f"{inside.url}/x"}) or True  # type: ignore[func-returns-value]
        )
        with pytest.raises(RepoAgentError):
            fetch({"url": f"{server.url}/m/", "floating": "true"})
        assert inside.requests == []
