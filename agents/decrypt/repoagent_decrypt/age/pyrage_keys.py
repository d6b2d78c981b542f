"""Keys that age v1 leaves to others (ssh, plug-ins, hardware tags), through the optional package ``pyrage``.

``pyrage`` gives no access to the file key, so with such a key the whole file goes through it, single-threaded.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from repoagent_decrypt.files.errors import (
    HeaderError,
    InvalidKeyError,
    MissingExtraError,
    NoMatchError,
    PayloadError,
)
from repoagent_decrypt.files.positional import Sizes, new_file

if TYPE_CHECKING:
    from repoagent_decrypt.age.keys import Identities, Recipients

_PLUGIN_RECIPIENT: Final = re.compile(r"age1[a-z0-9.+_-]+1[a-z02-9]+")


@dataclass(frozen=True, slots=True, repr=False)
class ForeignIdentity:
    """The text of a key; it is handed to ``pyrage`` when a file needs it."""

    kind: str
    secret: bytes
    source: str

    @classmethod
    def ssh(cls, pem: bytes, source: str) -> "ForeignIdentity":
        """A private key of ssh (ed25519 or RSA, not encrypted) in PEM."""
        return cls("ssh", pem, source)

    @classmethod
    def plugin(cls, line: str) -> "ForeignIdentity":
        """``AGE-PLUGIN-NAME-1...``; needs the program ``age-plugin-name`` on the PATH."""
        return cls("plugin", line.encode(), "plug-in identity")

    def load(self) -> Any:
        """The object of ``pyrage``."""
        pyrage = _pyrage(f"an identity of kind '{self.kind}'")
        try:
            if self.kind == "ssh":
                return pyrage.ssh.Identity.from_buffer(self.secret)
            identity = pyrage.plugin.Identity.from_str(self.secret.decode())
            return pyrage.plugin.IdentityPluginV1(identity.plugin(), [identity], _NoInteraction())
        except pyrage.IdentityError:
            raise InvalidKeyError(f"{self.source}: not a usable {self.kind} identity (is it encrypted?)") from None

    def __repr__(self) -> str:
        return f"ForeignIdentity({self.kind!r}, ...)"


@dataclass(frozen=True, slots=True)
class ForeignRecipient:
    """The text of a public key that ``pyrage`` understands."""

    text: str

    def load(self) -> Any:
        """The object of ``pyrage``."""
        pyrage = _pyrage(f"the recipient {self.text[:16]}...")
        try:
            return self._load(pyrage)
        except pyrage.RecipientError:
            raise InvalidKeyError(f"not a usable recipient: {self.text[:40]}") from None

    def _load(self, pyrage: ModuleType) -> Any:
        if self.text.startswith("ssh-"):
            return pyrage.ssh.Recipient.from_str(self.text)
        for prefix, module in (("age1tagpq1", "tagpq"), ("age1tag1", "tag")):
            if self.text.startswith(prefix) and hasattr(pyrage, module):
                return getattr(pyrage, module).Recipient.from_str(self.text)
        recipient = pyrage.plugin.Recipient.from_str(self.text)
        return pyrage.plugin.RecipientPluginV1(recipient.plugin(), [recipient], [], _NoInteraction())


def is_foreign_recipient(line: str) -> bool:
    """Whether ``line`` is a recipient of ssh, of a hardware tag or of a plug-in."""
    return line.startswith("ssh-") or _PLUGIN_RECIPIENT.fullmatch(line) is not None


def decrypt_file_foreign(source: Path, target: Path, identities: "Identities") -> Sizes:
    """As :func:`~repoagent_decrypt.age.files.decrypt_file`, with the foreign identities.

    Raises:
        MissingExtraError: ``pyrage`` is not installed.
    """
    loaded = [identity.load() for identity in identities.foreign]
    pyrage = _pyrage("this identity")
    with source.open("rb") as stream, new_file(target) as fd, open(fd, "wb", closefd=False) as out:
        try:
            pyrage.decrypt_io(stream, out, loaded)
        except pyrage.DecryptError as error:
            raise _translate(str(error)) from None
        except OSError as error:
            # Damage to the payload surfaces as a read error of pyrage's reader.
            raise PayloadError(f"the payload was changed or cut short ({error})") from None
    return Sizes(source.stat().st_size, target.stat().st_size)


def encrypt_file_foreign(source: Path, target: Path, recipients: "Recipients", *, armored: bool = False) -> Sizes:
    """As :func:`~repoagent_decrypt.age.files.encrypt_file`, for foreign recipients and X25519 ones beside them.

    Raises:
        InvalidKeyError: a recipient that ``pyrage`` cannot mix in (a passphrase, a post-quantum key).
    """
    loaded = [recipient.load() for recipient in recipients.foreign]
    pyrage = _pyrage("this recipient")
    loaded += _natives(pyrage, recipients)
    with source.open("rb") as stream, new_file(target) as fd, open(fd, "wb", closefd=False) as out:
        try:
            pyrage.encrypt_io(stream, out, loaded, armored)
        except pyrage.EncryptError as error:
            raise InvalidKeyError(f"cannot encrypt to these recipients: {error}") from None
    return Sizes(source.stat().st_size, target.stat().st_size)


class _NoInteraction:
    """What a plug-in may ask a person, answered by no one: a server has no one at the keyboard."""

    def display_message(self, message: str) -> None:
        """Nowhere to show it."""

    def confirm(self, message: str, yes_string: str, no_string: str | None) -> bool | None:
        """No answer."""
        return None

    def request_public_string(self, description: str) -> str | None:
        """No answer."""
        return None

    def request_passphrase(self, description: str) -> str | None:
        """No answer."""
        return None


def _natives(pyrage: ModuleType, recipients: "Recipients") -> Sequence[Any]:
    texts = [str(recipient) for recipient in recipients.native]
    if not all(text.startswith("age1") and not text.startswith("age1pq1") for text in texts):
        raise InvalidKeyError("ssh and plug-in recipients can be mixed with age1... ones only")
    return [pyrage.x25519.Recipient.from_str(text) for text in texts]


def _pyrage(what: str) -> ModuleType:
    try:
        import pyrage
    except ImportError:
        raise MissingExtraError(
            f"{what} needs pyrage; from a checkout: pip install './agents/decrypt[pyrage]'"
        ) from None
    module: ModuleType = pyrage
    return module


def _translate(text: str) -> Exception:
    lowered = text.lower()
    if "no matching keys" in lowered:
        return NoMatchError("no identity fits (pyrage)")
    if "header" in lowered:
        return HeaderError(f"the header is invalid ({text})")
    return PayloadError(f"the file does not decrypt ({text})")
