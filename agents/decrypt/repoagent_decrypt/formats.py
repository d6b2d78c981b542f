"""The formats of encrypted files, told by content. Nothing outside of this module knows which there are.

Tink and JWE are imported by the first load that has their keys or files.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from repoagent_decrypt.age.armor import looks_armored
from repoagent_decrypt.age.files import decrypt_file as decrypt_age_file
from repoagent_decrypt.age.header import read_header
from repoagent_decrypt.age.keys import Identities, parse_identities
from repoagent_decrypt.age.pyrage_keys import decrypt_file_foreign
from repoagent_decrypt.age.source import PeekReader
from repoagent_decrypt.age.stanzas.scrypt import ScryptIdentity
from repoagent_decrypt.age.stream import NONCE, sealed_shape
from repoagent_decrypt.files.errors import NoMatchError, WrongKeyError
from repoagent_decrypt.files.positional import Progress, Sizes, Workers

if TYPE_CHECKING:
    from repoagent_decrypt.jwe.keys import JweKey
    from repoagent_decrypt.tink.keyset import StreamingKey

_Kind = TypeVar("_Kind")

SUFFIXES: Final = (".age", ".jwe", ".tink")
_TINK: Final = (b"\x18", b"\x28")
"""The length of the header, which comes first: with keys of 16 and of 32 bytes."""
_JWE: Final = re.compile(rb"e[wy][A-Za-z0-9_-]*[.A-Za-z0-9_-]")
_HEAD: Final = 64


@dataclass(frozen=True, slots=True)
class Keys:
    """Keys for every format."""

    age: Identities = field(default_factory=Identities)
    tink: "tuple[StreamingKey, ...]" = ()
    jwe: "tuple[JweKey, ...]" = ()

    def __add__(self, other: "Keys") -> "Keys":
        return Keys(self.age + other.age, self.tink + other.tink, self.jwe + other.jwe)

    def __bool__(self) -> bool:
        return any(bool(getattr(self, kind.name)) for kind in fields(self))

    def wipe(self) -> None:
        """Forget the passphrases."""
        for identity in self.age.native:
            if isinstance(identity, ScryptIdentity):
                identity.wipe()


def _keyset(data: bytes, source: str) -> Keys:
    from repoagent_decrypt.tink.keyset import parse_keyset

    return Keys(tink=parse_keyset(data, source))


def _jwe_keys(data: bytes, source: str) -> Keys:
    from repoagent_decrypt.jwe.keys import parse_keys

    return Keys(jwe=parse_keys(data, source))


KEY_PARAMETERS: Final[dict[str, Callable[[bytes, str], Keys]]] = {
    "identity": lambda data, source: Keys(age=parse_identities(data, source)),
    "keyset": _keyset,
    "jwe_key": _jwe_keys,
}
"""What reads the secret behind each parameter that is a reference to keys; the second argument names it in messages."""


def plain_size(path: Path, keys: Keys) -> int:
    """How many bytes of plaintext ``path`` has, without decrypting it; of an armored age file its own size.

    Raises:
        DecryptError: it is not of a known format, or is too short, or its format has no key among ``keys``.
    """
    match _format(path):
        case "tink":
            from repoagent_decrypt.tink import files as tink

            return tink.plain_size(path, _some(keys.tink, "Tink", "keyset"))
        case "jwe":
            from repoagent_decrypt.jwe import files as jwe

            return jwe.plain_size(path)
        case _:
            return _age_plain_size(path)


def decrypt_file(source: Path, target: Path, keys: Keys, *, workers: Workers, progress: Progress) -> Sizes:
    """Decrypt ``source`` into the new file ``target``, which exists afterwards only if all of it is authentic.

    Raises:
        DecryptError: one of its kinds, by what is wrong.
        OSError: a file cannot be read or written.
    """
    match _format(source):
        case "tink":
            from repoagent_decrypt.tink import files as tink

            known = _some(keys.tink, "Tink", "keyset")
            return tink.decrypt_file(source, target, known, workers=workers, progress=progress)
        case "jwe":
            from repoagent_decrypt.jwe import files as jwe

            return jwe.decrypt_file(source, target, _some(keys.jwe, "JWE", "jwe_key"), progress)
        case _:
            return _decrypt_age(source, target, _some(keys.age, "age", "identity"), workers, progress)


def _format(path: Path) -> str:
    with path.open("rb") as stream:
        head = stream.read(_HEAD)
    if head[:1] in _TINK:
        return "tink"
    return "jwe" if _JWE.match(head) else "age"


def _some(keys: _Kind, name: str, parameter: str) -> _Kind:
    if not keys:
        raise WrongKeyError(f"a file in the {name} format, and no key for it: give the parameter '{parameter}'")
    return keys


def _age_plain_size(path: Path) -> int:
    with path.open("rb", buffering=0) as stream:
        reader = PeekReader(stream)
        size = stream.seek(0, io.SEEK_END)
        stream.seek(0)
        if looks_armored(reader):
            return size
        return sealed_shape(size - read_header(reader).size - NONCE).plain


def _decrypt_age(source: Path, target: Path, keys: Identities, workers: Workers, progress: Progress) -> Sizes:
    """With the first identity that fits, our own kinds first."""
    try:
        return decrypt_age_file(source, target, keys.native, workers=workers, progress=progress)
    except NoMatchError:
        if not keys.foreign:
            raise
    return decrypt_file_foreign(source, target, keys)
