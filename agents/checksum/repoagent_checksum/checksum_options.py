"""What the parameters of an agent entry ask for, also by digest files that lie with the operator's policy."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from repoagent.api import InvalidArgumentError
from repoagent_checksum.digest_file import Algorithm, Entry, find_algorithm
from repoagent_checksum.file_names import plain_name
from repoagent_checksum.json_listings import parse_descriptor_digest, read_entries

PARAMETERS: Final[Mapping[str, str]] = {
    "manifest": "a digest file or listing that covers the directory it lies in",
    "algorithm": "of manifest lines that do not name one",
    "ignore": "a file or empty directory that a manifest need not list",
    "trusted_manifest": "a digest file that the operator's policy lists as a trust root; covers the whole model",
    "safetensors_index": "an index whose shards must be complete, or * for all there are",
}
"""The parameters that are not ``ALGORITHM:path``, each with what it is for."""

ANY_ALGORITHM: Final = "DIGEST"
"""``DIGEST:path`` takes the algorithm from its value, ``sha256:<hex>``."""


@dataclass(frozen=True, slots=True)
class Expected:
    """One ``ALGORITHM:path`` parameter. ``value`` is the digest as it was written, for the message."""

    entry: Entry
    value: str


@dataclass(frozen=True, slots=True)
class Request:
    """All that is to be checked."""

    files: tuple[Expected, ...] = ()
    manifests: tuple[str, ...] = ()
    trusted: tuple[str, ...] = ()
    """Names of trust roots."""
    algorithm: Algorithm | None = None
    ignore: frozenset[str] = frozenset()
    indexes: tuple[str, ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether nothing was asked for."""
        return not (self.files or self.manifests or self.trusted or self.indexes)


def parse_parameters(parameters: Iterable[tuple[str, str]]) -> Request:
    """Read the parameters, in any order, repeats allowed (the last ``algorithm`` counts).

    Raises:
        InvalidArgumentError: a key that is neither a known parameter nor ``ALGORITHM:path``.
        UnsupportedError: an unknown algorithm.
        UnsafePathError: a path that leaves the model's directory.
    """
    named: dict[str, list[str]] = {key: [] for key in PARAMETERS}
    files = []
    for key, value in parameters:
        if key in named:
            named[key].append(value)
        else:
            files.append(_expected(key, value))
    return Request(
        files=tuple(files),
        manifests=_paths(named["manifest"], "manifest"),
        trusted=tuple(dict.fromkeys(named["trusted_manifest"])),
        algorithm=find_algorithm(named["algorithm"][-1]) if named["algorithm"] else None,
        ignore=frozenset(_paths([value.rstrip("/") for value in named["ignore"]], "ignore")),
        indexes=_paths(named["safetensors_index"], "safetensors_index"),
    )


def _paths(values: Iterable[str], parameter: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(plain_name(value, f"parameter {parameter!r}") for value in values))


def _expected(key: str, value: str) -> Expected:
    name, colon, path = key.partition(":")
    if not colon:
        close = difflib.get_close_matches(key, PARAMETERS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise InvalidArgumentError(f"failed to parse key: {key}{hint}")
    if name.upper() == ANY_ALGORITHM:
        algorithm, digest = parse_descriptor_digest(value.strip(), f"parameter {key!r}")
    else:
        algorithm = find_algorithm(name)
        digest = value.strip().lower().removeprefix(f"{algorithm.key}:")
    return Expected(Entry(plain_name(path, f"parameter {key!r}"), algorithm, digest), value)


def trusted_entries(request: Request, trust_roots: Mapping[str, Path]) -> list[Entry]:
    """What the digest files state that ``request`` names among ``trust_roots``, where no model's owner can write.

    Raises:
        InvalidArgumentError: the policy has no trust root of that name, or its file cannot be read or used.
        UnsafePathError: a line names a file outside of the model.
        UnsupportedError: a line names an algorithm that is not known here.
    """
    return [entry for name in request.trusted for entry in _read(name, trust_roots, request)]


def _read(name: str, trust_roots: Mapping[str, Path], request: Request) -> list[Entry]:
    path = trust_roots.get(name)
    if path is None:
        known = ", ".join(sorted(trust_roots)) or "none"
        raise InvalidArgumentError(
            f"trusted_manifest '{name}' is not a trust root of the policy's rule for this model; trust roots: {known}"
        )
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"the trust root '{name}' cannot be read: {error.strerror}") from None
    return read_entries(data, path.name, request.algorithm)
