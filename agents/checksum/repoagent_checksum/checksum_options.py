"""What the parameters of an agent entry ask for."""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from repoagent.api import InvalidArgumentError
from repoagent_checksum.digest_file import Algorithm, Entry, find_algorithm
from repoagent_checksum.file_names import plain_name
from repoagent_checksum.json_listings import parse_descriptor_digest

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
