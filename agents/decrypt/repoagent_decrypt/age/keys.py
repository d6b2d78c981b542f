"""From text to identities and recipients: what an identity file or a recipients file holds."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, TypeVar

from repoagent_decrypt.age.pyrage_keys import ForeignIdentity, ForeignRecipient, is_foreign_recipient
from repoagent_decrypt.age.stanzas import Identity, Recipient
from repoagent_decrypt.age.stanzas.hybrid import HybridIdentity, HybridRecipient
from repoagent_decrypt.age.stanzas.x25519 import X25519Identity, X25519Recipient
from repoagent_decrypt.files.errors import InvalidKeyError

_Kind = TypeVar("_Kind")

_SSH: Final = re.compile(rb"\s*-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----\s")
_SECRET: Final = re.compile(r"AGE-SECRET-KEY-|AGE-PLUGIN-|-----BEGIN", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Identities:
    """Ours, and those that only ``pyrage`` can use."""

    native: tuple[Identity, ...] = ()
    foreign: tuple[ForeignIdentity, ...] = ()

    def __add__(self, other: "Identities") -> "Identities":
        return Identities(self.native + other.native, self.foreign + other.foreign)

    def __bool__(self) -> bool:
        return bool(self.native or self.foreign)


@dataclass(frozen=True, slots=True)
class Recipients:
    """Ours, and those that only ``pyrage`` can encrypt to."""

    native: tuple[Recipient, ...] = ()
    foreign: tuple[ForeignRecipient, ...] = ()

    def __add__(self, other: "Recipients") -> "Recipients":
        return Recipients(self.native + other.native, self.foreign + other.foreign)

    def __bool__(self) -> bool:
        return bool(self.native or self.foreign)


def holds_secret_key(text: str) -> bool:
    """Whether ``text`` looks like a secret key itself rather than the place of one."""
    return _SECRET.search(text) is not None


def parse_identities(data: bytes, source: str) -> Identities:
    """Read an identity file: one key a line, ``#`` comments; or one private key of ssh in PEM.

    ``source`` names it in messages, which never repeat its content.

    Raises:
        InvalidKeyError: a line is no identity, or there is none.
    """
    if _SSH.match(data):
        return Identities(foreign=(ForeignIdentity.ssh(data, source),))
    found = sum(_parsed(data, source, _parse_identity), Identities())
    if not found:
        raise InvalidKeyError(f"{source} holds no identity; expected a line AGE-SECRET-KEY-1...")
    return found


def parse_recipients(data: bytes, source: str) -> Recipients:
    """Read a recipients file (or one recipient): ``age1...``, ``age1pq1...``, ``ssh-...``, a plug-in's; ``#`` comments.

    Raises:
        InvalidKeyError: a line is no recipient, or there is none.
    """
    found = sum(_parsed(data, source, _parse_recipient), Recipients())
    if not found:
        raise InvalidKeyError(f"{source} holds no recipient; expected a line age1...")
    return found


def recipients_of(identities: Identities, source: str) -> list[str]:
    """The public halves, in order; foreign identities have none that we can compute."""
    if identities.foreign:
        raise InvalidKeyError(f"{source}: the recipient of an ssh or plug-in identity must be given by its owner")
    known = (identity for identity in identities.native if isinstance(identity, X25519Identity | HybridIdentity))
    return [str(identity.recipient) for identity in known]


def _parse_identity(line: str) -> Identities:
    if line.startswith("AGE-SECRET-KEY-PQ-1"):
        return Identities((HybridIdentity.parse(line),))
    if line.startswith("AGE-PLUGIN-"):
        return Identities(foreign=(ForeignIdentity.plugin(line),))
    if line.startswith("AGE-SECRET-KEY-1"):
        return Identities((X25519Identity.parse(line),))
    if line.startswith("age1"):
        raise InvalidKeyError("this is a recipient (a public key); an identity starts with AGE-SECRET-KEY-1")
    raise InvalidKeyError("not an identity; expected AGE-SECRET-KEY-1...")


def _parse_recipient(line: str) -> Recipients:
    if line.startswith("age1pq1"):
        return Recipients((HybridRecipient.parse(line),))
    if is_foreign_recipient(line):
        return Recipients(foreign=(ForeignRecipient(line),))
    if line.startswith("age1"):
        return Recipients((X25519Recipient.parse(line),))
    if holds_secret_key(line):
        raise InvalidKeyError("this is a secret key; give its recipient (the age1... of the line '# public key:')")
    raise InvalidKeyError("not a recipient; expected age1..., age1pq1... or ssh-...")


def _parsed(data: bytes, source: str, parse: Callable[[str], _Kind]) -> Iterator[_Kind]:
    """What ``parse`` makes of each line that is not empty or a comment."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        raise InvalidKeyError(f"{source} is not a text of age keys") from None
    for number, line in enumerate(map(str.strip, text.splitlines()), 1):
        if line and not line.startswith("#"):
            try:
                yield parse(line)
            except InvalidKeyError as error:
                raise InvalidKeyError(f"{source}, line {number}: {error}") from None
