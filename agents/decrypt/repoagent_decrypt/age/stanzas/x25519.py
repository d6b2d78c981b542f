"""The X25519 recipient: ``age1...`` and ``AGE-SECRET-KEY-1...``."""

from collections.abc import Sequence
from typing import Final

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from repoagent_decrypt.age.primitives.encoding import b64encode, bech32_decode_as, bech32_encode, hkdf
from repoagent_decrypt.age.stanzas import FileKey, Stanza, first_key, open_file_key, seal_file_key, share_of
from repoagent_decrypt.files.errors import HeaderError, InvalidKeyError

_TYPE: Final = "X25519"
_INFO: Final = b"age-encryption.org/v1/X25519"
_IDENTITY_PREFIX: Final = "AGE-SECRET-KEY-"
_RECIPIENT_PREFIX: Final = "age"
_KEY_BYTES: Final = 32


class X25519Recipient:
    """A public key."""

    def __init__(self, public: bytes) -> None:
        if len(public) != _KEY_BYTES:
            raise InvalidKeyError(f"an X25519 recipient has {_KEY_BYTES} bytes, not {len(public)}")
        self._public = public

    @classmethod
    def parse(cls, text: str) -> "X25519Recipient":
        """Read ``age1...``."""
        return cls(bech32_decode_as(text, _RECIPIENT_PREFIX, "an X25519 recipient"))

    def wrap(self, key: FileKey) -> list[Stanza]:
        """Wrap ``key`` with a fresh ephemeral key."""
        ephemeral = X25519PrivateKey.generate()
        share = ephemeral.public_key().public_bytes_raw()
        try:
            shared = ephemeral.exchange(X25519PublicKey.from_public_bytes(self._public))
        except ValueError:
            raise InvalidKeyError("the X25519 recipient is a point of low order: no secret can be agreed") from None
        wrap_key = hkdf(shared, share + self._public, _INFO)
        return [Stanza((_TYPE, b64encode(share).decode()), seal_file_key(wrap_key, key))]

    def __str__(self) -> str:
        return bech32_encode(_RECIPIENT_PREFIX, self._public)


class X25519Identity:
    """A private key."""

    def __init__(self, secret: bytes) -> None:
        if len(secret) != _KEY_BYTES:
            raise InvalidKeyError(f"an X25519 identity has {_KEY_BYTES} bytes, not {len(secret)}")
        self._private = X25519PrivateKey.from_private_bytes(secret)
        self._public = self._private.public_key().public_bytes_raw()

    @classmethod
    def generate(cls) -> "X25519Identity":
        """A fresh key pair."""
        return cls(X25519PrivateKey.generate().private_bytes_raw())

    @classmethod
    def parse(cls, text: str) -> "X25519Identity":
        """Read ``AGE-SECRET-KEY-1...``."""
        return cls(bech32_decode_as(text, _IDENTITY_PREFIX, "an X25519 identity"))

    @property
    def recipient(self) -> X25519Recipient:
        """The public half."""
        return X25519Recipient(self._public)

    def unwrap(self, stanzas: Sequence[Stanza]) -> FileKey | None:
        """The file key from the first X25519 stanza that is for this key."""
        return first_key(stanzas, _TYPE, self._unwrap)

    def export(self) -> str:
        """The secret, as ``AGE-SECRET-KEY-1...``; deliberately not ``str()``."""
        return bech32_encode(_IDENTITY_PREFIX, self._private.private_bytes_raw())

    def __repr__(self) -> str:
        return f"X25519Identity(recipient={self.recipient})"

    def _unwrap(self, stanza: Stanza) -> FileKey | None:
        share = share_of(stanza, _KEY_BYTES)
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(share))
        except ValueError:
            raise HeaderError("the X25519 share is a point of low order") from None
        return open_file_key(hkdf(shared, share + self._public, _INFO), stanza)
