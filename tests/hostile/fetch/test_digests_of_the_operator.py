"""A digest that the operator gives holds wherever the file comes from: a hub, a registry, a bucket, a server."""

import hashlib
from collections.abc import Callable
from typing import Any

import pytest

from agents.fetch.tests.servers import Hub, Registry, sha256
from repoagent.errors import RepoAgentError

Fetch = Callable[..., dict[str, bytes]]
GOOD, EVIL = b"good weights", b"evil weights"
TITLE = "org.opencontainers.image.title"
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
