"""An access file that has been read: which client a key, a token or a certificate belongs to."""

import hashlib
import hmac
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from repoagent_server.access.clients import Caller, Client
from repoagent_server.access.credentials import API_KEY, Given
from repoagent_server.access.rights import NotAuthenticatedError
from repoagent_server.access.tokens import TokenIssuer, read_token

_NO_KEY: Final = f"this server needs a key: send the header 'Authorization: Bearer KEY' or '{API_KEY}: KEY'"
_BAD_KEY: Final = "the key is not valid"
_BAD_CERTIFICATE: Final = "the certificate of this connection belongs to no client of the access file"
_PREFIX: Final = 4
"""Bytes of a digest that the look-up compares, in whatever time; the whole digest is compared in constant time."""
_TOKENS: Final = 4096
"""Verified tokens that are remembered."""
_SUBJECT: Final = 128


@dataclass(frozen=True, slots=True)
class TokenClient:
    """The client of every token of ``issuer`` whose claims have these values."""

    issuer: str
    claims: Mapping[str, str]
    client: Client

    def matches(self, claims: Mapping[str, Any]) -> bool:
        """Whether every claim has its value, or contains it if it is a list. ``scope`` is a list with spaces."""
        return all(_has(claims.get(name), value, name == "scope") for name, value in self.claims.items())


@dataclass(slots=True)
class _KeyOwner:
    """A key and its client; ``caller`` is made when the key comes first."""

    digest: bytes
    client: Client
    caller: Caller | None = None


class Rules:
    """Thread-safe. Never changed, but for what it remembers: new content of the file makes new rules."""

    def __init__(
        self,
        clients: Sequence[Client] = (),
        *,
        keys: Mapping[bytes, Client] | None = None,
        certificates: Mapping[str, Client] | None = None,
        issuers: Sequence[TokenIssuer] = (),
        tokens: Sequence[TokenClient] = (),
        opened: frozenset[str] = frozenset(),
    ) -> None:
        """Put together what was read.

        Args:
            clients: All of them.
            keys: The clients by the SHA-256 of their keys.
            certificates: The clients by names of certificates; see :class:`PeerIdentity`.
            issuers: Who issues tokens.
            tokens: The clients of tokens; the first that matches counts.
            opened: What needs no key although it would otherwise.
        """
        self.mark: Final = object()
        """What its callers are known by."""
        self.clients = tuple(clients)
        self.opened = opened
        self._keys: dict[bytes, list[_KeyOwner]] = {}
        for digest, client in (keys or {}).items():
            self._keys.setdefault(digest[:_PREFIX], []).append(_KeyOwner(digest, client))
        self._certificates = dict(certificates or {})
        self.issuers = {issuer.issuer: issuer for issuer in issuers}
        self._token_clients = tuple(tokens)
        self._verified: dict[bytes, Caller] = {}
        self._lock = threading.Lock()

    def caller(self, given: Given) -> Caller:
        """The client that ``given`` belongs to.

        Raises:
            NotAuthenticatedError: there is none.
        """
        if given.secret:
            digest = hashlib.sha256(given.secret).digest()
            for owner in self._keys.get(digest[:_PREFIX], ()):
                if hmac.compare_digest(owner.digest, digest):
                    if owner.caller is None:
                        owner.caller = Caller(owner.client, given, self.mark)
                    return owner.caller
            return self._token_caller(digest, given)
        if given.peer is not None:
            for name in given.peer.names:
                client = self._certificates.get(name)
                if client is not None:
                    return Caller(client, given, self.mark)
            raise NotAuthenticatedError(_BAD_CERTIFICATE)
        raise NotAuthenticatedError(_NO_KEY, given=False)

    def _token_caller(self, digest: bytes, given: Given) -> Caller:
        if not self.issuers or given.secret.count(b".") != 2:
            raise NotAuthenticatedError(_BAD_KEY)
        known = self._verified.get(digest)
        if known is not None and known.expires is not None and time.time() < known.expires:
            return known
        claims, expires = read_token(given.secret, self.issuers)
        issuer = self.issuers[claims["iss"]].name
        for one in self._token_clients:
            if one.issuer == issuer and one.matches(claims):
                caller = Caller(one.client, given, self.mark, subject=_subject(claims.get("sub")), expires=expires)
                self._remember(digest, caller)
                return caller
        raise NotAuthenticatedError("the token is valid, but its claims belong to no client of the access file")

    def _remember(self, digest: bytes, caller: Caller) -> None:
        with self._lock:
            if len(self._verified) >= _TOKENS:
                self._verified.clear()
            self._verified[digest] = caller


def _has(found: Any, value: str, spaced: bool) -> bool:
    if isinstance(found, str):
        return value in found.split() if spaced else found == value
    return isinstance(found, list) and value in found


def _subject(value: Any) -> str:
    """Whom a token is about, for logs: one short line of printable characters."""
    text = value if isinstance(value, str) else ""
    return "".join(char if char.isprintable() else "?" for char in text[:_SUBJECT])
