"""What one hub, registry or policy was believed is not believed of another."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from agents.fetch.tests.servers import Hub, Registry, sha256
from repoagent.errors import RepoAgentError
from tests.file_server import FileServer, Request

Fetch = Callable[..., dict[str, bytes]]
TITLE = "org.opencontainers.image.title"


def test_what_another_hub_has_under_a_commit_is_not_taken_for_it(
    fetch: Fetch, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A commit is a name that the hub resolves: a mirror of yesterday does not decide what it means today."""
    url = f"hf://acme/m@{hub.commit}"
    hub.models["acme/m"] = {"model.onnx": b"of the mirror"}
    assert fetch({"url": url}) == {"1/model.onnx": b"of the mirror"}
    with Hub() as official:
        monkeypatch.setenv("HF_ENDPOINT", official.url)
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", official.large.host)
        official.models["acme/m"] = {"model.onnx": b"of the official one"}
        official.token = "hf_secret"
        monkeypatch.setenv("HUB_TOKEN", "hf_secret")
        asked = len(hub.seen_headers)
        assert fetch({"url": url, "token": "env:HUB_TOKEN"}) == {"1/model.onnx": b"of the official one"}
        assert len(hub.seen_headers) == asked, "the mirror was asked, perhaps with the token"


def test_a_small_file_of_another_place_does_not_stand_in_for_one_with_its_sha1(
    fetch: Fetch, hub: Hub, registry: Registry
) -> None:
    """Two files can be made to have one SHA-1, which is all that a hub knows of small files."""
    hub.models["acme/evil"] = {"labels.txt": b"a\n"}
    hub.models["acme/good"] = {"labels.txt": b"a\n"}
    fetch({"url": f"hf://acme/evil@{hub.commit}"})
    fetch({"url": f"hf://acme/good@{hub.commit}"})
    assert [path for path, _ in hub.requests if "/good/resolve/" in path], "the other model's file was taken"


def test_hosts_that_the_policy_names_are_named_for_its_own_loads_only(fetch: Fetch, registry: Registry) -> None:
    digest = registry.push("m", [registry.layer("m", "a/b", b"x", **{TITLE: "model.onnx"})])
    url = f"oci://{registry.host}/m@{digest}"
    assert fetch({"url": url}) == {"1/model.onnx": b"x"}
    asked = len(registry.requests)
    with pytest.raises(RepoAgentError, match="not a public address"):
        fetch({"url": url}, demanded=False)
    assert len(registry.requests) == asked


@pytest.mark.parametrize("scheme", ["Basic", "Bearer"])
def test_where_a_registry_redirects_to_cannot_ask_for_its_login(
    fetch: Fetch, registry: Registry, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    monkeypatch.setenv("USER_NAME", "user")
    monkeypatch.setenv("PASS_WORD", "password")
    with FileServer() as thief:
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", thief.host)

        def ask(request: Request) -> bool:
            request.answer(401, b"{}", {"WWW-Authenticate": f'{scheme} realm="{registry.url}/token",service="x"'})
            return True

        def redirect(request: Request) -> bool:
            if "/manifests/" in request.target:
                request.answer(307, headers={"Location": f"{thief.url}/x"})
            return "/manifests/" in request.target

        thief.handlers.append(ask)
        registry.handlers.insert(0, redirect)
        url = f"oci://{registry.host}/m@sha256:{'0' * 64}"
        with pytest.raises(RepoAgentError, match="redirects to a server that wants a login of its own"):
            fetch({"url": url, "username": "env:USER_NAME", "password": "env:PASS_WORD"})
        assert "Basic" not in str(thief.seen_headers)
        assert "/token" not in str(registry.requests)


def test_the_token_of_a_registry_of_models_stays_there_also_from_the_cache(
    fetch: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agents.fetch.tests.servers import Tracking

    with Tracking() as tracking, FileServer({"/m/model.onnx": b"weights"}) as store:
        monkeypatch.setenv("MLFLOW_TRACKING_URI", tracking.url)
        monkeypatch.setenv("MLFLOW_TOKEN", "of mlflow")
        monkeypatch.setenv("REPOAGENT_FETCH_HOSTS", store.host)
        tracking.place = f"{store.url}/m"
        parameters = {"url": "models:/fraud/3", "digest": f"model.onnx={sha256(b'weights')}"}
        first = fetch({**parameters, "token": "env:MLFLOW_TOKEN"})
        asked = len(tracking.requests)
        again = fetch({**parameters, "token": "env:MLFLOW_TOKEN", "into": "2"})
        assert (first, again) == ({"1/model.onnx": b"weights"}, {"2/model.onnx": b"weights"})
        assert len(tracking.requests) == asked
        assert "of mlflow" not in str(store.seen_headers)


# A digest that the operator gives holds wherever the file comes from: a hub, a registry, a bucket, a server.

GOOD, EVIL = b"good weights", b"evil weights"
FILES = {"model.onnx": GOOD, "labels.txt": b"a\n", "extra.py": b"import os"}
LISTING = "".join(f"{sha256(FILES[name])[7:]}  {name}\n" for name in ("model.onnx", "labels.txt")).encode()


def of_the_hub(hub: Hub, files: dict[str, bytes]) -> str:
    hub.models["acme/m"] = dict(files)
    hub.commit = hashlib.sha1(repr(files).encode(), usedforsecurity=False).hexdigest()
    return f"hf://acme/m@{hub.commit}"


def of_the_registry(registry: Registry, files: dict[str, bytes]) -> str:
    layers = [registry.layer("m", "a/b", content, **{TITLE: name}) for name, content in files.items()]
    return f"oci://{registry.host}/m@{registry.push('m', layers)}"


@pytest.fixture(params=["hub", "registry"])
def publish(request: pytest.FixtureRequest, hub: Hub, registry: Registry) -> Callable[[dict[str, bytes]], str]:
    """Publish files at a place of that kind; their URL, pinned by what the place itself names them."""
    if request.param == "hub":
        return lambda files: of_the_hub(hub, files)
    return lambda files: of_the_registry(registry, files)


Publish = Callable[[dict[str, bytes]], str]


def test_only_the_files_with_digests_come(fetch: Fetch, publish: Publish) -> None:
    url = publish(FILES)
    assert fetch({"url": url, "digest": f"model.onnx={sha256(GOOD)}"}) == {"1/model.onnx": GOOD}


def test_another_content_is_refused_although_the_place_vouches_for_it(fetch: Fetch, publish: Publish) -> None:
    for name in ("model.onnx", "labels.txt"):  # of a hub, a large file and a small one, which has a SHA-1 there
        url = publish({**FILES, name: EVIL})
        with pytest.raises(RepoAgentError, match=r"has the digest sha256:\w+.*; expected sha256:"):
            fetch({"url": url, "digest": f"{name}={sha256(FILES[name])}"})


def test_a_file_that_is_not_there_is_reported(fetch: Fetch, publish: Publish) -> None:
    url = publish(FILES)
    with pytest.raises(RepoAgentError, match=r"has no file 'other\.onnx', for which a digest is given"):
        fetch({"url": url, "digest": f"other.onnx={sha256(GOOD)}"})


def test_a_list_of_digests_decides(fetch: Fetch, publish: Publish) -> None:
    parameters = {"manifest": f"SHA256SUMS={sha256(LISTING)}", "include": "*.onnx"}
    files = {**FILES, "SHA256SUMS": LISTING}
    assert fetch({"url": publish(files), **parameters}) == {"1/model.onnx": GOOD}
    with pytest.raises(RepoAgentError, match="has the digest"):
        fetch({"url": publish({**files, "model.onnx": EVIL}), **parameters})
    with pytest.raises(RepoAgentError, match="has the digest"):
        fetch({"url": publish({**files, "SHA256SUMS": LISTING + b"\n"}), **parameters})


def test_archives_cannot_be_named_by_the_digests_of_files(fetch: Fetch, registry: Registry) -> None:
    from agents.fetch.tests.servers import tar

    kind = "application/vnd.cncf.model.weight.v1.tar"
    digest = registry.push("m", [registry.layer("m", kind, tar({"model.onnx": EVIL}))])
    parameters: dict[str, Any] = {"url": f"oci://{registry.host}/m@{digest}", "digest": f"model.onnx={sha256(GOOD)}"}
    with pytest.raises(RepoAgentError, match="has its files in archives"):
        fetch(parameters)


def test_with_digests_a_branch_or_a_tag_is_pinned(fetch: Fetch, hub: Hub, registry: Registry, notes: list[str]) -> None:
    of_the_hub(hub, FILES)
    assert fetch({"url": "hf://acme/m@main", "digest": f"model.onnx={sha256(GOOD)}"}) == {"1/model.onnx": GOOD}
    of_the_registry(registry, FILES)
    url = f"oci://{registry.host}/m:v1"
    assert fetch({"url": url, "digest": f"model.onnx={sha256(GOOD)}"}) == {"1/model.onnx": GOOD}
    assert [note.endswith("; pinned") or "; pinned;" in note for note in notes if "fetched" in note] == [True, True]
