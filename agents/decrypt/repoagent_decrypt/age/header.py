"""The textual header of an age file: grammar, MAC, and finding the file key."""

import hmac
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from repoagent_decrypt.age.primitives.encoding import b64decode, b64encode, hkdf
from repoagent_decrypt.age.source import PeekReader
from repoagent_decrypt.age.stanzas import FileKey, Identity, Recipient, Stanza
from repoagent_decrypt.files.errors import HeaderError, HeaderMacError, NoMatchError

MAGIC: Final = b"age-encryption.org/"
_VERSION_LINE: Final = MAGIC + b"v1\n"
_COLUMNS: Final = 64
MAX_HEADER_BYTES: Final = 2 << 20
"""A header may not be longer: room for some 10 000 X25519 recipients, and a bound on what a hostile file costs."""
_ARGUMENT: Final = re.compile(rb"[\x21-\x7e]+")


@dataclass(frozen=True, slots=True)
class Header:
    """A parsed header. ``size`` counts its bytes up to and with the final newline."""

    stanzas: tuple[Stanza, ...]
    mac: bytes
    signed: bytes
    size: int

    def verify(self, key: FileKey) -> None:
        """Raise ``HeaderMacError`` unless ``key`` made this header."""
        if not hmac.compare_digest(_mac(key, self.signed), self.mac):
            raise HeaderMacError("the header was changed: its MAC does not fit the file key")


def read_header(source: PeekReader) -> Header:
    """Read a header and stop right behind it.

    Raises:
        HeaderError: any deviation from the grammar, a version other than v1, a file cut short.
    """
    lines = _Lines(source)
    first = lines.next("the version line")
    if first != _VERSION_LINE:
        raise HeaderError(_why_not_v1(first))
    stanzas: list[Stanza] = []
    while True:
        line = lines.next("a stanza or the end of the header")
        if line.startswith(b"---"):
            break
        stanzas.append(_read_stanza(line, lines))
    if not stanzas:
        raise HeaderError("the header has no recipient stanza")
    mac = _read_mac(line)
    raw = b"".join(lines.seen)
    return Header(tuple(stanzas), mac, raw[: len(raw) - len(line) + 3], len(raw))


def open_header(header: Header, identities: Iterable[Identity]) -> FileKey:
    """Find the file key with the first identity that fits, and check the header with it.

    Raises:
        HeaderError: a stanza breaks the rules of its type.
        NoMatchError: no identity fits.
        HeaderMacError: the header was tampered with.
    """
    types = [stanza.type for stanza in header.stanzas]
    if "scrypt" in types and len(types) > 1:
        raise HeaderError("a passphrase (scrypt) stanza must be the only one in the header")
    for identity in identities:
        key = identity.unwrap(header.stanzas)
        if key is not None:
            header.verify(key)
            return key
    raise NoMatchError(f"no identity fits: the file is encrypted to {_describe(types)}")


def make_header(key: FileKey, recipients: Sequence[Recipient]) -> bytes:
    """Wrap ``key`` for every recipient and write the header.

    Raises:
        HeaderError: no recipients, or a passphrase together with another recipient.
    """
    stanzas = [stanza for recipient in recipients for stanza in recipient.wrap(key)]
    if not stanzas:
        raise HeaderError("there must be at least one recipient")
    if len(stanzas) > 1 and any(stanza.type == "scrypt" for stanza in stanzas):
        raise HeaderError("a passphrase must be the only recipient of a file")
    signed = b"".join([_VERSION_LINE, *(write_stanza(stanza) for stanza in stanzas), b"---"])
    return signed + b" " + b64encode(_mac(key, signed)) + b"\n"


class _Lines:
    """Reads lines, keeps them, and gives up when there are too many bytes."""

    def __init__(self, source: PeekReader) -> None:
        self._source = source
        self._left = MAX_HEADER_BYTES
        self.seen: list[bytes] = []

    def next(self, what: str) -> bytes:
        line = self._source.readline(self._left)
        self._left -= len(line)
        if not line.endswith(b"\n"):
            raise HeaderError(f"the header ends before {what}" if self._left else "the header is too long")
        self.seen.append(line)
        return line


def _why_not_v1(line: bytes) -> str:
    if line.startswith(MAGIC) and line != _VERSION_LINE.replace(b"\n", b"\r\n"):
        return "this is an age file of a version other than v1"
    return "not an age file: it does not start with the line 'age-encryption.org/v1'"


def _read_stanza(line: bytes, lines: _Lines) -> Stanza:
    if not line.startswith(b"-> "):
        raise HeaderError(f"line {len(lines.seen)} of the header starts neither a stanza ('-> ') nor the end ('---')")
    arguments = line[3:-1].split(b" ")
    if not all(_ARGUMENT.fullmatch(argument) for argument in arguments):
        raise HeaderError(f"line {len(lines.seen)} of the header has an empty argument or a forbidden character")
    body = bytearray()
    columns = _COLUMNS
    while columns == _COLUMNS:
        text = lines.next("the end of a stanza")[:-1]
        columns = len(text)
        if columns > _COLUMNS:
            raise HeaderError(f"line {len(lines.seen)} of the header is longer than {_COLUMNS} columns")
        body += b64decode(text, f"line {len(lines.seen)} of the header")
    return Stanza(tuple(argument.decode("ascii") for argument in arguments), bytes(body))


def write_stanza(stanza: Stanza) -> bytes:
    """The text of one stanza, with its final newline."""
    text = b64encode(stanza.body)
    # A body that fills its last line gets an empty one, so that a stanza always ends with a short line.
    rows = [text[start : start + _COLUMNS] for start in range(0, len(text) + 1, _COLUMNS)]
    return b"\n".join([b"-> " + " ".join(stanza.arguments).encode("ascii"), *rows, b""])


def _read_mac(line: bytes) -> bytes:
    if not line.startswith(b"--- "):
        raise HeaderError("the last line of the header has no MAC")
    mac = b64decode(line[4:-1], "the header's MAC")
    if len(mac) != 32:
        raise HeaderError(f"the header's MAC has {len(mac)} bytes, not 32")
    return mac


def _mac(key: FileKey, signed: bytes) -> bytes:
    return hmac.digest(hkdf(key.secret, b"", b"header"), signed, "sha256")


def _describe(types: Sequence[str]) -> str:
    if types == ["scrypt"]:
        return "a passphrase"
    counted = [f"{types.count(name)} x {name}" for name in dict.fromkeys(types)]
    return ", ".join(counted[:8]) + (", ..." if len(counted) > 8 else "")
