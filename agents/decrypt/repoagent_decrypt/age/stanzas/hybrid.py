"""The post-quantum recipient (ML-KEM-768 with X25519, "X-Wing"): ``age1pq1...`` and ``AGE-SECRET-KEY-PQ-1...``."""

import hashlib
import secrets
from collections.abc import Sequence
from typing import Final

from cryptography.exceptions import InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.mlkem import MLKEM768PrivateKey, MLKEM768PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import (
    AEAD,
    KDF,
    KEM,
    MLKEM768X25519PrivateKey,
    MLKEM768X25519PublicKey,
    Suite,
)

from repoagent_decrypt.age.primitives.encoding import b64encode, bech32_decode_as, bech32_encode
from repoagent_decrypt.age.stanzas import FileKey, Stanza, first_key, share_of
from repoagent_decrypt.files.errors import HeaderError, InvalidKeyError

_TYPE: Final = "mlkem768x25519"
_INFO: Final = b"age-encryption.org/mlkem768x25519"
_IDENTITY_PREFIX: Final = "AGE-SECRET-KEY-PQ-"
_RECIPIENT_PREFIX: Final = "age1pq"
_SEED_BYTES: Final = 32
_MLKEM_PUBLIC_BYTES: Final = 1184
_PUBLIC_BYTES: Final = _MLKEM_PUBLIC_BYTES + 32
_SHARE_BYTES: Final = 1088 + 32


class HybridRecipient:
    """A public key: the ML-KEM-768 encapsulation key, then the X25519 one."""

    def __init__(self, public: bytes) -> None:
        if len(public) != _PUBLIC_BYTES:
            raise InvalidKeyError(f"a post-quantum recipient has {_PUBLIC_BYTES} bytes, not {len(public)}")
        self._public = public

    @classmethod
    def parse(cls, text: str) -> "HybridRecipient":
        """Read ``age1pq1...``."""
        return cls(bech32_decode_as(text, _RECIPIENT_PREFIX, "a post-quantum recipient"))

    def wrap(self, key: FileKey) -> list[Stanza]:
        """Wrap ``key`` with HPKE."""
        try:
            public = MLKEM768X25519PublicKey(
                MLKEM768PublicKey.from_public_bytes(self._public[:_MLKEM_PUBLIC_BYTES]),
                X25519PublicKey.from_public_bytes(self._public[_MLKEM_PUBLIC_BYTES:]),
            )
            sealed = _suite().encrypt(bytes(key.secret), public, _INFO)
        except ValueError:
            raise InvalidKeyError("the post-quantum recipient is not a valid key") from None
        share, body = sealed[:_SHARE_BYTES], sealed[_SHARE_BYTES:]
        return [Stanza((_TYPE, b64encode(share).decode()), body)]

    def __str__(self) -> str:
        return bech32_encode(_RECIPIENT_PREFIX, self._public)


class HybridIdentity:
    """A private key: a 32-byte seed from which both halves are expanded."""

    def __init__(self, seed: bytes) -> None:
        if len(seed) != _SEED_BYTES:
            raise InvalidKeyError(f"a post-quantum identity has {_SEED_BYTES} bytes, not {len(seed)}")
        self._seed = seed
        expanded = hashlib.shake_256(seed).digest(96)
        try:
            self._mlkem = MLKEM768PrivateKey.from_seed_bytes(expanded[:64])
        except UnsupportedAlgorithm as error:
            raise InvalidKeyError(f"post-quantum keys need a `cryptography` built with ML-KEM: {error}") from None
        self._x25519 = X25519PrivateKey.from_private_bytes(expanded[64:])

    @classmethod
    def generate(cls) -> "HybridIdentity":
        """A fresh key pair."""
        return cls(secrets.token_bytes(_SEED_BYTES))

    @classmethod
    def parse(cls, text: str) -> "HybridIdentity":
        """Read ``AGE-SECRET-KEY-PQ-1...``."""
        return cls(bech32_decode_as(text, _IDENTITY_PREFIX, "a post-quantum identity"))

    @property
    def recipient(self) -> HybridRecipient:
        """The public half."""
        mlkem = self._mlkem.public_key().public_bytes_raw()
        return HybridRecipient(mlkem + self._x25519.public_key().public_bytes_raw())

    def unwrap(self, stanzas: Sequence[Stanza]) -> FileKey | None:
        """The file key from the first stanza that is for this key."""
        return first_key(stanzas, _TYPE, self._unwrap)

    def export(self) -> str:
        """The secret, as ``AGE-SECRET-KEY-PQ-1...``."""
        return bech32_encode(_IDENTITY_PREFIX, self._seed)

    def __repr__(self) -> str:
        return f"HybridIdentity(recipient={str(self.recipient)[:24]}...)"

    def _unwrap(self, stanza: Stanza) -> FileKey | None:
        share = share_of(stanza, _SHARE_BYTES)
        self._refuse_low_order(share[-32:])
        try:
            private = MLKEM768X25519PrivateKey(self._mlkem, self._x25519)
            return FileKey(_suite().decrypt(share + stanza.body, private, _INFO))
        except InvalidTag:
            return None

    def _refuse_low_order(self, share: bytes) -> None:
        # HPKE reports this and a wrong tag as the same error; for age the first is a broken file.
        try:
            self._x25519.exchange(X25519PublicKey.from_public_bytes(share))
        except ValueError:
            raise HeaderError(f"the X25519 part of the {_TYPE} share is a point of low order") from None


def _suite() -> Suite:
    return Suite(KEM.MLKEM768_X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
