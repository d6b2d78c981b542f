"""Digest lists in JSON that users already have: OCI image manifests, and listings of the Hugging Face hub."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from repoagent.api import InvalidArgumentError, UnsupportedError, read_json
from repoagent_checksum.digest_file import (
    ALGORITHMS,
    GIT_SHA1,
    Algorithm,
    Entry,
    find_algorithm,
    merge_entries,
    parse_digest_file,
)
from repoagent_checksum.file_names import MOST_VALUES, plain_name

_NAME_ANNOTATIONS: Final = ("org.cncf.model.filepath", "org.opencontainers.image.title")
_DIGEST: Final = re.compile(r"([A-Za-z0-9-]+):([0-9A-Fa-f]+)")

Json = Mapping[str, Any]


def read_entries(data: bytes, source: str, default: Algorithm | None = None) -> list[Entry]:
    """Read a digest file or a listing; raises as :func:`parse_listing` and :func:`.parse_digest_file` do."""
    return parse_listing(data, source) if looks_like_json(data) else parse_digest_file(data, source, default)


def looks_like_json(data: bytes) -> bool:
    """Whether ``data`` starts as a JSON object or array does, and no line of digests can."""
    return data.lstrip()[:1] in (b"{", b"[")


def parse_listing(data: bytes, source: str) -> list[Entry]:
    """Read an OCI image manifest, or what the hub's ``/api/models/ID/tree/REVISION?recursive=true`` or
    ``/api/models/ID/revision/REVISION?blobs=true`` answers.

    Raises:
        InvalidArgumentError: none of these, or something needed is missing in it.
        UnsafePathError: a name that is absolute or has ``..`` in it.
        UnsupportedError: an OCI layer that is an archive.
    """
    try:
        document = read_json(data, most_values=MOST_VALUES)
    except ValueError as error:
        raise InvalidArgumentError(f"{source}: not valid JSON: {error}") from error
    try:
        return merge_entries(list(_entries(document, source)), source)
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidArgumentError(f"{source}: a listing without what it needs: {error!r}") from error


def _entries(document: Any, source: str) -> Iterator[Entry]:
    if isinstance(document, list):
        return (_hub_file(item, item["path"], source) for item in document if item["type"] == "file")
    if "layers" in document:
        return (_oci_layer(layer, source) for layer in document["layers"])
    if "siblings" in document:
        return (_hub_file(item, item["rfilename"], source) for item in document["siblings"])
    raise InvalidArgumentError(f"{source}: neither an OCI image manifest nor a Hugging Face listing")


def _hub_file(item: Json, path: str, source: str) -> Entry:
    large = item.get("lfs")
    if large:
        algorithm, digest = ALGORITHMS["SHA256"], large.get("oid") or large["sha256"]
    else:
        algorithm, digest = GIT_SHA1, item.get("oid") or item["blobId"]
    return _entry(path, algorithm, digest.removeprefix("sha256:"), item["size"], source)


def _oci_layer(layer: Json, source: str) -> Entry:
    annotations = layer.get("annotations") or {}
    path = next((annotations[key] for key in _NAME_ANNOTATIONS if annotations.get(key)), None)
    if path is None:
        raise InvalidArgumentError(f"{source}: a layer without a file name ({' or '.join(_NAME_ANNOTATIONS)})")
    media_type = layer.get("mediaType") or ""
    if "tar" in re.split(r"[.+]", media_type) or annotations.get("io.deis.oras.content.unpack") == "true":
        raise UnsupportedError(f"{source}: {path!r} is a layer of type {media_type}: an archive, not the file itself")
    algorithm, digest = parse_descriptor_digest(layer["digest"], source)
    return _entry(path, algorithm, digest, layer["size"], source)


def _entry(path: str, algorithm: Algorithm, digest: str, size: object, source: str) -> Entry:
    if not isinstance(size, int) or not re.fullmatch(f"[0-9A-Fa-f]{{{algorithm.hex_length}}}", digest):
        raise InvalidArgumentError(f"{source}: {path!r} has no valid size or {algorithm.name} digest")
    return Entry(plain_name(path, source), algorithm, digest.lower(), size)


def parse_descriptor_digest(text: str, source: str) -> tuple[Algorithm, str]:
    """Algorithm and hexadecimal digits of a digest as OCI and Git LFS write it, ``sha256:<hex>``.

    Raises:
        InvalidArgumentError: not of that form.
        UnsupportedError: unknown algorithm.
    """
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise InvalidArgumentError(f"{source}: expected a digest like 'sha256:<hex>', got {text[:80]!r}")
    return find_algorithm(match[1], source), match[2].lower()
