"""JSON listings in the shapes that registries and the Hugging Face hub answer with."""

import hashlib
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from repoagent_checksum.json_listings import looks_like_json, parse_descriptor_digest, parse_listing

from repoagent.api import InvalidArgumentError, UnsafePathError, UnsupportedError

HEX = hashlib.sha256(b"weights").hexdigest()
BLOB = hashlib.sha1(b"blob 2\0{}").hexdigest()

TREE = [
    {"type": "directory", "oid": BLOB, "size": 0, "path": "onnx"},
    {"type": "file", "oid": BLOB, "size": 2, "path": "config.json"},
    {
        "type": "file",
        "oid": "0" * 40,
        "size": 7,
        "lfs": {"oid": HEX, "size": 7, "pointerSize": 134},
        "path": "onnx/model.onnx",
    },
]
INFO = {
    "id": "someone/model",
    "siblings": [
        {"rfilename": "config.json", "size": 2, "blobId": BLOB},
        {"rfilename": "onnx/model.onnx", "size": 7, "blobId": "0" * 40, "lfs": {"sha256": HEX, "size": 7}},
    ],
}


def layer(**changes: Any) -> dict[str, Any]:
    return {
        "mediaType": "application/vnd.cncf.model.weight.v1.raw",
        "digest": f"sha256:{HEX}",
        "size": 7,
        "annotations": {"org.cncf.model.filepath": "1/model.onnx"},
    } | changes


def parse(document: object) -> list[tuple[str, str, str, int | None]]:
    entries = parse_listing(json.dumps(document).encode(), "listing.json")
    return [(entry.path, entry.algorithm.name, entry.digest, entry.size) for entry in entries]


@pytest.mark.parametrize("document", [TREE, INFO], ids=["tree", "info"])
def test_the_hubs_listings_are_read(document: object) -> None:
    assert parse(document) == [("config.json", "GIT-SHA1", BLOB, 2), ("onnx/model.onnx", "SHA256", HEX, 7)]


def test_an_oci_image_manifest_is_read() -> None:
    titled = layer(annotations={"org.opencontainers.image.title": "labels.txt"}, digest=f"sha512:{'0' * 128}", size=3)
    assert parse({"schemaVersion": 2, "layers": [layer(), titled]}) == [
        ("1/model.onnx", "SHA256", HEX, 7),
        ("labels.txt", "SHA512", "0" * 128, 3),
    ]


@pytest.mark.parametrize(
    "archive",
    [
        layer(mediaType="application/vnd.cncf.model.weight.v1.tar"),
        layer(mediaType="application/vnd.oci.image.layer.v1.tar+gzip"),
        layer(annotations={"org.opencontainers.image.title": "a", "io.deis.oras.content.unpack": "true"}),
    ],
)
def test_a_layer_that_is_an_archive_is_refused(archive: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedError, match="an archive, not the file itself"):
        parse({"layers": [archive]})


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"a": 1}, "neither an OCI image manifest nor"),
        ([], "no digest in it"),
        ([{"type": "file"}], "without what it needs"),
        ([1], "without what it needs"),
        ({"layers": 1}, "without what it needs"),
        ({"layers": [layer(annotations=None)]}, "a layer without a file name"),
        ({"layers": [layer(digest=HEX)]}, "expected a digest like 'sha256:<hex>'"),
        ({"layers": [layer(digest="sha256:00")]}, "no valid size or SHA256 digest"),
        ({"layers": [layer(size="7")]}, "no valid size"),
        ({"layers": [layer(), layer(digest=f"sha256:{'0' * 64}")]}, "two different SHA256 digests"),
    ],
)
def test_what_is_no_listing_is_refused(document: object, message: str) -> None:
    with pytest.raises(InvalidArgumentError, match=f"listing.json: .*{message}"):
        parse(document)


def test_broken_json_is_refused() -> None:
    with pytest.raises(InvalidArgumentError, match="not valid JSON"):
        parse_listing(b"[" * 100_000, "listing.json")


def test_a_listing_of_a_million_values_is_not_parsed() -> None:
    with pytest.raises(InvalidArgumentError, match="more than 1000000 values"):
        parse_listing(b"[" + b"{}," * 600_000 + b"0]", "listing.json")


def test_a_name_that_leaves_the_directory_is_refused() -> None:
    with pytest.raises(UnsafePathError):
        parse([{"type": "file", "path": "../a", "size": 2, "oid": BLOB}])


def test_json_is_told_from_lines() -> None:
    assert looks_like_json(b"\n {}")
    assert not looks_like_json(f"{HEX}  a".encode())


def test_descriptor_digests_are_read_in_any_case() -> None:
    algorithm, digest = parse_descriptor_digest(f"SHA256:{HEX.upper()}", "here")
    assert (algorithm.name, digest) == ("SHA256", HEX)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.just(f"sha256:{HEX}"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["layers", "siblings", "digest", "path", "type", "lfs", "oid", "size", "annotations"]),
            inner,
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(JSON)
def test_any_json_is_read_or_refused(document: object) -> None:
    try:
        parse(document)
    except (InvalidArgumentError, UnsupportedError):
        return
