"""The in-toto statement inside a signature, to and from a manifest.

Source: the OpenSSF Model Signing specification 1.0, sections 5, 6.5 and 11.
"""

import hashlib
import json
import re
from itertools import groupby
from typing import Any, Final

from repoagent_verify.bundle import member, read_signed_json
from repoagent_verify.manifest import DIGEST_SIZES, Manifest, Resource, Serialization, VerificationError

STATEMENT_TYPE: Final = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE: Final = "https://model_signing/signature/v1.0"
PREDICATE_TYPE_OF_0_2: Final = "https://model_signing/Digests/v0.1"
_RANGE: Final = re.compile(r"(?P<path>.+):(?P<start>\d{1,20}):(?P<end>\d{1,20})", re.DOTALL)
_NUMBERED: Final = re.compile(r"(?P<path>.+):shard-(?P<number>\d{1,12})", re.DOTALL)
_METHOD: Final = re.compile(r"file-shard-([1-9]\d{0,17})")
_LARGEST: Final = 1 << 63
"""No file has as many bytes."""
_WHAT: Final = "the signed statement"


def read_statement(payload: bytes) -> Manifest:
    """The manifest in ``payload``, whose signature has been verified.

    Raises:
        VerificationError: it is not a statement of the specification, or contradicts itself.
    """
    statement = read_signed_json(payload, _WHAT)
    if statement.get("_type") != STATEMENT_TYPE:
        raise VerificationError(f"{_WHAT} is of type {statement.get('_type')!r}, expected '{STATEMENT_TYPE}'")
    predicate_type = statement.get("predicateType")
    if predicate_type == PREDICATE_TYPE_OF_0_2:
        return _checked(_manifest_of_0_2(statement))
    if predicate_type != PREDICATE_TYPE:
        raise VerificationError(f"{_WHAT} has predicateType {predicate_type!r}, expected '{PREDICATE_TYPE}'")
    return _checked(_manifest(statement))


def root_digest(resources: tuple[Resource, ...]) -> str:
    """SHA-256 over the digests of ``resources`` in their order, in hexadecimal digits."""
    return hashlib.sha256(b"".join(resource.digest for resource in resources)).hexdigest()


def write_statement(manifest: Manifest) -> bytes:
    """``manifest`` as a statement. Its resources are sorted by their names."""
    how = manifest.serialization
    serialization: dict[str, Any] = {
        "method": "files" if how.shard_size is None else "shards",
        "hash_type": how.hash_type,
        "allow_symlinks": how.allow_symlinks,
        "ignore_paths": list(how.ignore_paths),
    }
    if how.shard_size is not None:
        serialization["shard_size"] = how.shard_size
    resources = [
        {"name": item.name, "algorithm": _algorithm(how), "digest": item.digest.hex()} for item in manifest.resources
    ]
    statement = {
        "_type": STATEMENT_TYPE,
        "subject": [{"name": manifest.name, "digest": {"sha256": manifest.root_digest}}],
        "predicateType": PREDICATE_TYPE,
        "predicate": {"serialization": serialization, "resources": resources},
    }
    return json.dumps(statement, ensure_ascii=False).encode()


def _algorithm(how: Serialization) -> str:
    # The reference tool writes the size of ranges into the name of the algorithm, and its verifier expects that.
    return how.hash_type if how.shard_size is None else f"{how.hash_type}-sharded-{how.shard_size}"


def _manifest(statement: dict[str, Any]) -> Manifest:
    subjects = member(statement, "subject", list, _WHAT)
    if len(subjects) != 1 or not isinstance(subjects[0], dict):
        raise VerificationError(f"{_WHAT} has {len(subjects)} subjects, expected one")
    expected = member(member(subjects[0], "digest", dict, "its subject"), "sha256", str, "the digest of its subject")
    predicate = member(statement, "predicate", dict, _WHAT)
    how = _serialization(member(predicate, "serialization", dict, "its predicate"))
    entries = member(predicate, "resources", list, "its predicate")
    resources = tuple(_resource(entry, how) for entry in entries)
    if how.numbered:
        resources = _with_open_ends(resources)
    if root_digest(resources) != expected:
        raise VerificationError(f"{_WHAT} contradicts itself: its resources have another root digest than its subject")
    return Manifest(member(subjects[0], "name", str, "its subject"), how, resources, expected)


def _serialization(members: dict[str, Any]) -> Serialization:
    what = "its serialization"
    method = member(members, "method", str, what)
    numbered = _METHOD.fullmatch(method)
    if method not in {"files", "shards"} and numbered is None:
        raise VerificationError(f"{what} has method {method!r}, expected 'files', 'shards' or 'file-shard-SIZE'")
    hash_type = member(members, "hash_type", str, what)
    if hash_type not in DIGEST_SIZES:
        raise VerificationError(f"{what} has hash_type {hash_type!r}, expected one of {', '.join(DIGEST_SIZES)}")
    shard_size = _shard_size(members) if method == "shards" else int(numbered[1]) if numbered else None
    ignored = members.get("ignore_paths", [])
    if not isinstance(ignored, list) or not all(isinstance(path, str) for path in ignored):
        raise VerificationError(f"{what} has 'ignore_paths' that are not a list of strings")
    links = members.get("allow_symlinks", False)
    if not isinstance(links, bool):
        raise VerificationError(f"{what} has 'allow_symlinks' that is not true or false")
    return Serialization(hash_type, shard_size, numbered is not None, links, tuple(ignored))


def _shard_size(members: dict[str, Any]) -> int:
    size = members.get("shard_size")
    # protobuf's JSON made numbers of some versions doubles: 8.0.
    if isinstance(size, bool) or not isinstance(size, int | float) or not 1 <= size < _LARGEST or size != int(size):
        raise VerificationError(f"its serialization has shard_size {size!r}, expected a positive integer")
    return int(size)


def _resource(entry: object, how: Serialization) -> Resource:
    if not isinstance(entry, dict):
        raise VerificationError("its predicate has a resource that is not an object")
    name = member(entry, "name", str, "a resource")
    digest = _digest(member(entry, "digest", str, f"resource {name!r}"), how.hash_type, name)
    algorithm = member(entry, "algorithm", str, f"resource {name!r}")
    if algorithm not in {how.hash_type, _algorithm(how)}:
        raise VerificationError(f"resource {name!r} has algorithm {algorithm!r}, expected '{how.hash_type}'")
    if how.shard_size is None:
        return Resource(name, digest)
    if how.numbered:
        numbered = _NUMBERED.fullmatch(name)
        if numbered is None:
            raise VerificationError(f"resource {name!r} does not end with ':shard-NUMBER', as ranges do")
        start = int(numbered["number"]) * how.shard_size
        return Resource(numbered["path"], digest, start, start + how.shard_size)
    match = _RANGE.fullmatch(name)
    if match is None:
        raise VerificationError(f"resource {name!r} does not end with ':START:END', as ranges do")
    return Resource(match["path"], digest, int(match["start"]), int(match["end"]))


def _with_open_ends(resources: tuple[Resource, ...]) -> tuple[Resource, ...]:
    """The last range of each file may be shorter than the others; it goes to the end of the file, wherever that is."""
    last = {item.path: item.start for item in sorted(resources, key=lambda item: item.start)}
    return tuple(
        Resource(item.path, item.digest, item.start) if item.start == last[item.path] else item for item in resources
    )


def _digest(text: str, hash_type: str, name: str) -> bytes:
    if not re.fullmatch(rf"[0-9a-fA-F]{{{2 * DIGEST_SIZES[hash_type]}}}", text):
        raise VerificationError(f"resource {name!r} has a digest that is not {hash_type} in hexadecimal digits")
    return bytes.fromhex(text)


def _manifest_of_0_2(statement: dict[str, Any]) -> Manifest:
    """Version 0.2 of the reference tool listed the files as subjects."""
    resources = []
    for subject in member(statement, "subject", list, _WHAT):
        if not isinstance(subject, dict):
            raise VerificationError(f"{_WHAT} has a subject that is not an object")
        name = member(subject, "name", str, "a subject")
        digests = member(subject, "digest", dict, f"subject {name!r}")
        resources.append(Resource(name, _digest(member(digests, "sha256", str, f"subject {name!r}"), "sha256", name)))
    found = tuple(resources)
    return Manifest("", Serialization(), found, root_digest(found))


def _checked(manifest: Manifest) -> Manifest:
    if not manifest.resources:
        raise VerificationError(f"{_WHAT} covers no file")
    names = [resource.name for resource in manifest.resources]
    if len(set(names)) != len(names):
        raise VerificationError(f"{_WHAT} names a file twice")
    for path in {resource.path for resource in manifest.resources}:
        _check_path(path)
    for path in manifest.serialization.ignore_paths:
        _check_ignored(path)
    if manifest.serialization.shard_size is not None:
        _check_ranges(manifest)
    return manifest


def _check_path(path: str) -> None:
    parts = path.split("/")
    if "" in parts or "." in parts or ".." in parts or "\0" in path or "\\" in path:
        raise VerificationError(f"the signed path {path!r} is not a plain relative path inside the model")


def _check_ignored(path: str) -> None:
    # Older tools recorded paths as they were given, so '/x', '../x' and 'x/' occur. None can cover a file of the model
    # unless it is a plain one, and '.' would cover them all.
    if path.strip("/") in {"", "."} or any(letter in path for letter in "*?["):
        raise VerificationError(f"the signed statement ignores {path!r}, which would leave files uncovered")


def _check_ranges(manifest: Manifest) -> None:
    """The ranges of each file must follow each other from its begin, each of the size that the statement names."""
    size = manifest.serialization.shard_size or 0
    ordered = sorted(manifest.resources, key=lambda item: (item.path, item.start))
    beyond = [item.name for item in ordered if max(item.start, item.end or 0) >= _LARGEST]
    if beyond:
        raise VerificationError(f"the signed range {beyond[0]!r} ends where no file does")
    for path, group in groupby(ordered, key=lambda item: item.path):
        ranges = list(group)
        for number, item in enumerate(ranges):
            end = item.end or 0
            last = number == len(ranges) - 1
            full = item.start + size
            follows = item.start == number * size and (item.start < end or item.end is None)
            if not follows or not (end == full or (last and end < full)):
                raise VerificationError(f"the signed ranges of {path!r} have gaps or overlap at byte {item.start}")
