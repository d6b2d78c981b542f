"""What can be wrong with an age file or a key. Texts never contain key material."""

from repoagent_decrypt.files.errors import DamagedError, DecryptError, KeyFormatError, WrongKeyError


class AgeError(DecryptError):
    """Base of everything this library raises about a file or a key."""


class HeaderError(AgeError):
    """The header breaks the grammar, or a stanza that is addressed to an identity breaks its rules."""


class ArmorError(AgeError):
    """The ASCII armor is not strict PEM with the label ``AGE ENCRYPTED FILE``."""


class NoMatchError(AgeError, WrongKeyError):
    """The header is well formed, but none of the identities opens any of its stanzas."""


class HeaderMacError(AgeError):
    """The file key was found, but the header was changed after it was made."""


class PayloadError(AgeError, DamagedError):
    """The payload was truncated, extended, reordered or changed."""


class InvalidKeyError(AgeError, KeyFormatError):
    """Text that should be an identity or a recipient is none."""


class MissingExtraError(AgeError):
    """The key is of a kind that needs an optional package."""
