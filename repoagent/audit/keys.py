"""The key of the HMACs."""

from typing import Final

from repoagent.errors import InvalidArgumentError
from repoagent.storage.secrets.keys import builtin_providers, resolve_key

__all__ = ["audit_key"]

_SHORTEST: Final = 16


def audit_key(reference: str) -> bytes:
    """The key behind ``env:NAME`` or ``file:PATH``, without a line break at its end.

    Raises:
        RepoAgentError: it cannot be had, or is too short to be a key.
    """
    key = resolve_key(reference, builtin_providers()).rstrip(b"\r\n")
    if len(key) < _SHORTEST:
        raise InvalidArgumentError(f"the key of the audit log has {len(key)} bytes; at least {_SHORTEST} are needed")
    return key
