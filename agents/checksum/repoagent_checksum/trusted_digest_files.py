"""Digest files that lie with the operator's policy, where the owner of a model cannot write."""

from collections.abc import Mapping
from pathlib import Path

from repoagent.api import InvalidArgumentError
from repoagent_checksum.checksum_options import Request
from repoagent_checksum.digest_file import Entry
from repoagent_checksum.json_listings import read_entries


def trusted_entries(request: Request, trust_roots: Mapping[str, Path]) -> list[Entry]:
    """What the digest files state that ``request`` names among ``trust_roots``.

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
