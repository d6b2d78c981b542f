"""The passphrase recipient. It is always alone in a header."""

import re
import secrets
from collections.abc import Sequence
from typing import Final

from cryptography.hazmat.primitives.kdf.scrypt import Scrypt

from repoagent_decrypt.age.primitives.encoding import b64decode, b64encode
from repoagent_decrypt.age.stanzas import FileKey, Stanza, check_body, open_file_key, seal_file_key
from repoagent_decrypt.files.errors import HeaderError, InvalidKeyError

_TYPE: Final = "scrypt"
_LABEL: Final = b"age-encryption.org/v1/scrypt"
_SALT_BYTES: Final = 16
_DECIMAL: Final = re.compile(r"[1-9][0-9]*")
DEFAULT_WORK_FACTOR: Final = 18
"""log2(N) for new files, as the age tool: 256 MiB and about a second."""
MAX_WORK_FACTOR: Final = 22
"""The largest log2(N) accepted unless told otherwise, as the age tool: 4 GiB."""


class ScryptRecipient:
    """Encrypts to a passphrase."""

    def __init__(self, passphrase: bytes, *, work_factor: int = DEFAULT_WORK_FACTOR) -> None:
        if not passphrase:
            raise InvalidKeyError("the passphrase is empty")
        if not 1 <= work_factor <= 30:
            raise InvalidKeyError(f"the scrypt work factor must be 1 to 30, not {work_factor}")
        self._passphrase = bytearray(passphrase)
        self._work_factor = work_factor

    def wrap(self, key: FileKey) -> list[Stanza]:
        """Wrap ``key`` with a fresh salt; costs what the work factor demands."""
        salt = secrets.token_bytes(_SALT_BYTES)
        body = seal_file_key(_derive(self._passphrase, salt, self._work_factor), key)
        return [Stanza((_TYPE, b64encode(salt).decode(), str(self._work_factor)), body)]

    def __repr__(self) -> str:
        return "ScryptRecipient(...)"


class ScryptIdentity:
    """Opens files encrypted to a passphrase."""

    def __init__(self, passphrase: bytes, *, max_work_factor: int = MAX_WORK_FACTOR) -> None:
        if not passphrase:
            raise InvalidKeyError("the passphrase is empty")
        self._passphrase = bytearray(passphrase)
        self._max_work_factor = max_work_factor

    def unwrap(self, stanzas: Sequence[Stanza]) -> FileKey | None:
        """The file key, if the only stanza is a passphrase one and this is the passphrase."""
        if all(stanza.type != _TYPE for stanza in stanzas):
            return None
        if len(stanzas) != 1:
            raise HeaderError("a passphrase (scrypt) stanza must be the only one in the header")
        return self._unwrap(stanzas[0])

    def wipe(self) -> None:
        """Overwrite this copy of the passphrase; the identity is of no use afterwards."""
        self._passphrase[:] = bytes(len(self._passphrase))

    def __repr__(self) -> str:
        return "ScryptIdentity(...)"

    def _unwrap(self, stanza: Stanza) -> FileKey | None:
        if len(stanza.arguments) != 3:
            raise HeaderError(f"an scrypt stanza has 3 arguments, not {len(stanza.arguments)}")
        salt = b64decode(stanza.arguments[1].encode(), "the scrypt salt")
        if len(salt) != _SALT_BYTES:
            raise HeaderError(f"an scrypt salt has {_SALT_BYTES} bytes, not {len(salt)}")
        work_factor = self._work_factor(stanza.arguments[2])
        check_body(stanza)
        return open_file_key(_derive(self._passphrase, salt, work_factor), stanza)

    def _work_factor(self, text: str) -> int:
        if not _DECIMAL.fullmatch(text):
            raise HeaderError("the scrypt work factor is not a decimal number")
        # Compared by length first: the number itself may have a million digits.
        if len(text) > 3 or int(text) > self._max_work_factor:
            raise HeaderError(
                f"the scrypt work factor {text[:8]} is above the limit of {self._max_work_factor} (max_work_factor); "
                f"each step doubles time and memory, 20 takes 1 GiB"
            )
        return int(text)


def _derive(passphrase: bytearray, salt: bytes, work_factor: int) -> bytes:
    return Scrypt(salt=_LABEL + salt, length=32, n=1 << work_factor, r=8, p=1).derive(passphrase)
