"""One module per kind of recipient, all behind two one-method protocols."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from repoagent_decrypt.age.primitives.encoding import b64decode
from repoagent_decrypt.files.errors import HeaderError

FILE_KEY_BYTES: Final = 16
_SEALED_BYTES: Final = FILE_KEY_BYTES + 16
_NONCE: Final = bytes(12)


@dataclass(frozen=True, slots=True)
class Stanza:
    """One recipient's part of a header: arguments (the first is the type) and decoded body."""

    arguments: tuple[str, ...]
    body: bytes

    @property
    def type(self) -> str:
        """The kind of recipient."""
        return self.arguments[0]


class FileKey:
    """The 16 random bytes that everything else of a file is derived from."""

    __slots__ = ("secret",)

    def __init__(self, secret: bytes | bytearray) -> None:
        if len(secret) != FILE_KEY_BYTES:
            raise HeaderError(f"the wrapped file key has {len(secret)} bytes, not {FILE_KEY_BYTES}")
        self.secret: Final = bytearray(secret)

    @classmethod
    def generate(cls) -> "FileKey":
        """A fresh one; one per file."""
        return cls(secrets.token_bytes(FILE_KEY_BYTES))

    def wipe(self) -> None:
        """Overwrite this copy. Copies that Python or OpenSSL made on the way are beyond reach."""
        self.secret[:] = bytes(FILE_KEY_BYTES)

    def __repr__(self) -> str:
        return "FileKey(...)"


class Identity(Protocol):
    """What opens files."""

    def unwrap(self, stanzas: Sequence[Stanza]) -> FileKey | None:
        """The file key, or None if no stanza is for this identity.

        Raises:
            HeaderError: a stanza of this identity's type breaks the rules of that type.
        """


class Recipient(Protocol):
    """Whom a file is encrypted to."""

    def wrap(self, key: FileKey) -> list[Stanza]:
        """Stanzas from which the matching identity gets ``key`` back; different each time."""


def seal_file_key(wrap_key: bytes, key: FileKey) -> bytes:
    """Encrypt ``key`` under a key that is used only this once."""
    return ChaCha20Poly1305(wrap_key).encrypt(_NONCE, bytes(key.secret), None)


def check_body(stanza: Stanza) -> None:
    """Raise unless the body can hold a file key; checked before decryption (partitioning oracles)."""
    if len(stanza.body) != _SEALED_BYTES:
        raise HeaderError(f"the {stanza.type} stanza's body has {len(stanza.body)} bytes, not {_SEALED_BYTES}")


def share_of(stanza: Stanza, size: int) -> bytes:
    """The only argument of a stanza besides its type, a key share of ``size`` bytes; the body is checked as well.

    Raises:
        HeaderError: there is no such share.
    """
    kind = stanza.type
    if len(stanza.arguments) != 2:
        raise HeaderError(f"an {kind} stanza has 2 arguments, not {len(stanza.arguments)}")
    share = b64decode(stanza.arguments[1].encode(), f"the {kind} share")
    if len(share) != size:
        raise HeaderError(f"an {kind} share has {size} bytes, not {len(share)}")
    check_body(stanza)
    return share


def first_key(stanzas: Sequence[Stanza], kind: str, unwrap: Callable[[Stanza], FileKey | None]) -> FileKey | None:
    """The file key from the first stanza of a ``kind`` that ``unwrap`` opens; None if it opens none."""
    return next((key for stanza in stanzas if stanza.type == kind and (key := unwrap(stanza)) is not None), None)


def open_file_key(wrap_key: bytes, stanza: Stanza) -> FileKey | None:
    """Undo :func:`seal_file_key`; None if the stanza is for another key."""
    check_body(stanza)
    try:
        return FileKey(ChaCha20Poly1305(wrap_key).decrypt(_NONCE, stanza.body, None))
    except InvalidTag:
        return None
