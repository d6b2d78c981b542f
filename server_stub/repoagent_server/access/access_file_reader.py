"""Reading an access file. Everything that is not understood is an error: a typo must not let anybody in."""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from repoagent.errors import ConfigError, InvalidArgumentError, did_you_mean
from repoagent.nested_text import read_toml
from repoagent_server.access.clients import Client, Grant
from repoagent_server.access.credentials import canonical
from repoagent_server.access.key_sources import check_source
from repoagent_server.access.rights import Right
from repoagent_server.access.rules import Rules, TokenClient
from repoagent_server.access.tokens import ALGORITHMS, KeySet, TokenIssuer, load_library

#: The entry of ``open`` for the page on the metrics port.
METRICS: Final = "metrics"

_OPENED: Final = (METRICS,)
MOST_BYTES: Final = 1 << 22
_CLIENT_KEYS: Final = ("keys", "certificates", "issuer", "claims", "models", "rights", "grants")
_ISSUER_KEYS: Final = ("issuer", "audience", "key_set", "algorithms", "leeway_seconds")
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@:+-]{0,99}")
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_IDENTITY: Final = re.compile(r"(uri|dns|email|cn):\S.*|sha256:[0-9a-fA-F]{64}")
_MOST_LEEWAY: Final = 300
_NO_DIGEST: Final = (
    "is not the digest of a key, 'sha256:' and 64 hexadecimal digits; a key itself never stands in this file. "
    "`repoagent access key NAME` makes a key and prints its line. If this was a key, make a new one: others may have "
    "read it here"
)

KeySetOf = Callable[[TokenIssuer], KeySet]


def check_name(name: str) -> None:
    """Check that ``name`` can be that of a client.

    Raises:
        InvalidArgumentError: it cannot.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidArgumentError(f"{name!r} is not a valid name: letters, digits and _.@:+-, at most 100")


def read_rules(data: bytes, path: Path, key_set_of: KeySetOf) -> Rules:
    """The rules in ``data``, the content of ``path``.

    Args:
        data: TOML.
        path: For messages, and what files of key sets are relative to.
        key_set_of: Reads the key set of an issuer.

    Raises:
        ConfigError: it is not TOML, or has something that is not part of an access file.
        UnsupportedError: it names issuers of tokens, and the library for these is not installed.
    """
    source = str(path)
    if len(data) > MOST_BYTES:
        raise ConfigError(f"the access file has more than {MOST_BYTES} bytes", source=source)
    try:
        document = read_toml(data.decode("utf-8"))
    except ValueError as error:
        raise ConfigError(f"not a TOML file: {error}", source=source) from None
    return _Reader(source, path.parent, key_set_of).rules(document)


class _Reader:
    """Walks the document; every complaint names the place. No message repeats a value that may be a key."""

    def __init__(self, source: str, base: Path, key_set_of: KeySetOf) -> None:
        self._source = source
        self._base = base
        self._key_set_of = key_set_of
        self._keys: dict[bytes, Client] = {}
        self._certificates: dict[str, Client] = {}
        self._token_clients: list[TokenClient] = []

    def rules(self, document: Mapping[str, Any]) -> Rules:
        self._only(document, ("clients", "issuers", "open"), "the file")
        issuers = [self._issuer(name, table) for name, table in self._tables(document, "issuers")]
        names = [one.issuer for one in issuers]
        if len(set(names)) < len(names):
            raise self._error("issuers", 'two entries have the same "issuer"')
        by_name = {one.name: one for one in issuers}
        clients = [self._client(name, table, by_name) for name, table in self._tables(document, "clients")]
        return Rules(
            clients,
            keys=self._keys,
            certificates=self._certificates,
            issuers=issuers,
            tokens=self._token_clients,
            opened=frozenset(self._each_of(document.get("open", []), "open", _OPENED)),
        )

    def _client(self, name: str, table: Mapping[str, Any], issuers: Mapping[str, TokenIssuer]) -> Client:
        where = f"clients.{name}"
        self._only(table, _CLIENT_KEYS, where)
        client = Client(name, self._grants(table, where))
        ways = (
            self._read_keys(table, where, client),
            self._read_certificates(table, where, client),
            self._read_token(table, where, client, issuers),
        )
        if not any(ways):
            raise self._error(where, 'it needs "keys", "certificates" or "issuer": how the client shows who it is')
        return client

    def _read_keys(self, table: Mapping[str, Any], where: str, client: Client) -> bool:
        place = f"{where}: keys"
        for number, text in enumerate(self._list(table.get("keys", []), place)):
            match = _DIGEST.fullmatch(text) if isinstance(text, str) else None
            if match is None:
                raise self._error(f"{place}, entry {number + 1}", _NO_DIGEST)
            self._claim(self._keys, bytes.fromhex(match[1]), client, place)
        return bool(table.get("keys"))

    def _read_certificates(self, table: Mapping[str, Any], where: str, client: Client) -> bool:
        place = f"{where}: certificates"
        for text in self._texts(table.get("certificates", []), place):
            if _IDENTITY.fullmatch(text) is None:
                raise self._error(
                    place, f"{text!r} is not a name of a certificate: uri:, dns:, email:, cn:, or sha256:FINGERPRINT"
                )
            self._claim(self._certificates, canonical(text), client, place)
        return bool(table.get("certificates"))

    def _read_token(
        self, table: Mapping[str, Any], where: str, client: Client, issuers: Mapping[str, TokenIssuer]
    ) -> bool:
        name, claims = table.get("issuer"), self._table(table.get("claims", {}), f"{where}: claims")
        if name is None:
            if claims:
                raise self._error(where, '"claims" mean nothing without "issuer"')
            return False
        if not isinstance(name, str) or name not in issuers:
            meant = did_you_mean(str(name), issuers)
            raise self._error(where, f'"issuer" must be the name of a table [issuers.NAME] of this file{meant}')
        for claim, value in claims.items():
            if not isinstance(value, str) or not value:
                raise self._error(f"{where}: claims", f"the value of {claim!r} must be a text")
        self._token_clients.append(TokenClient(name, claims, client))
        return True

    def _claim(self, owners: dict[Any, Client], identity: Any, client: Client, where: str) -> None:
        owner = owners.setdefault(identity, client)
        if owner is not client:
            raise self._error(where, f"an entry belongs to the client '{owner.name}' already")

    def _grants(self, table: Mapping[str, Any], where: str) -> list[Grant]:
        """``models`` and ``rights`` of the client itself, and those of its ``grants``."""
        tables = [
            (self._table(entry, f"{where}: grants"), f"{where}: grants, entry {number + 1}")
            for number, entry in enumerate(self._list(table.get("grants", []), f"{where}: grants"))
        ]
        for entry, place in tables:
            self._only(entry, ("models", "rights"), place)
        if "models" in table or "rights" in table or not tables:
            tables.insert(0, (table, where))
        return [self._grant(entry, place) for entry, place in tables]

    def _grant(self, table: Mapping[str, Any], where: str) -> Grant:
        models = self._texts(table.get("models", []), f"{where}: models")
        rights = self._each_of(table.get("rights", []), f"{where}: rights", tuple(Right))
        if not models or not rights:
            raise self._error(where, 'it needs "models", such as ["fraud-*"], and "rights", such as ["infer"]')
        for pattern in models:
            if "/" in pattern:
                raise self._error(f"{where}: models", f"no name of a model has a slash, as {pattern!r} has")
        return Grant(tuple(models), frozenset(Right(right) for right in rights))

    def _issuer(self, name: str, table: Mapping[str, Any]) -> TokenIssuer:
        where = f"issuers.{name}"
        self._only(table, _ISSUER_KEYS, where)
        load_library()
        leeway = table.get("leeway_seconds", 0)
        if type(leeway) is not int or not 0 <= leeway <= _MOST_LEEWAY:
            raise self._error(where, f'"leeway_seconds" must be a whole number from 0 to {_MOST_LEEWAY}')
        algorithms = self._each_of(table.get("algorithms", []), f"{where}: algorithms", tuple(ALGORITHMS))
        if not algorithms:
            raise self._error(where, 'it needs "algorithms", such as ["RS256"]: those that its tokens are signed with')
        issuer, audience, key_set = (self._text(table, key, where) for key in ("issuer", "audience", "key_set"))
        try:
            key_source = check_source(key_set, self._base)
        except InvalidArgumentError as error:
            raise self._error(f"{where}: key_set", error.message) from None
        one = TokenIssuer(name, issuer, audience, tuple(algorithms), key_source, leeway)
        try:
            keys = self._key_set_of(one)
        except InvalidArgumentError as error:
            raise self._error(f"{where}: key_set", error.message) from None
        return TokenIssuer(name, issuer, audience, tuple(algorithms), key_source, leeway, keys)

    def _text(self, table: Mapping[str, Any], key: str, where: str) -> str:
        value = table.get(key)
        if not isinstance(value, str) or not value:
            raise self._error(where, f'it needs "{key}", a text')
        return value

    def _each_of(self, value: Any, where: str, known: Iterable[str]) -> list[str]:
        texts, known = self._texts(value, where), tuple(known)
        for text in texts:
            if text not in known:
                raise self._error(where, f"unknown {text!r}; known are {', '.join(known)}{did_you_mean(text, known)}")
        return texts

    def _texts(self, value: Any, where: str) -> list[str]:
        texts = self._list(value, where)
        if not all(isinstance(text, str) and text for text in texts):
            raise self._error(where, "expected a list of texts that are not empty")
        return texts

    def _list(self, value: Any, where: str) -> list[Any]:
        if not isinstance(value, list):
            raise self._error(where, "expected a list")
        return value

    def _tables(self, document: Mapping[str, Any], key: str) -> list[tuple[str, Mapping[str, Any]]]:
        """The tables below ``key`` with their names."""
        tables = []
        for name, entry in self._table(document.get(key, {}), key).items():
            try:
                check_name(name)
            except InvalidArgumentError as error:
                raise self._error(key, error.message) from None
            tables.append((name, self._table(entry, f"{key}.{name}")))
        return tables

    def _table(self, value: Any, where: str) -> Mapping[str, Any]:
        if not isinstance(value, Mapping):
            raise self._error(where, "expected a table")
        return value

    def _only(self, table: Mapping[str, Any], known: Iterable[str], where: str) -> None:
        unknown = sorted(set(table) - set(known))
        if unknown:
            meant = did_you_mean(unknown[0], known)
            raise self._error(where, f"unknown key {unknown[0]!r}; known are {', '.join(sorted(known))}{meant}")

    def _error(self, where: str, message: str) -> ConfigError:
        return ConfigError(f"{where}: {message}", source=self._source)
