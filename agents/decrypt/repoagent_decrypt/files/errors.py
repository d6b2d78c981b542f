"""What can be wrong with an encrypted file or a key, in any format. Texts never contain key material."""


class DecryptError(ValueError):
    """Base of everything that the formats raise about a file or a key."""


class DamagedError(DecryptError):
    """The file was truncated, extended, reordered or changed, or is not of the format that it seems to be."""


class WrongKeyError(DecryptError):
    """No key that was given opens the file."""


class KeyFormatError(DecryptError):
    """What a reference leads to is not a key of the expected kind."""


class AgeError(DecryptError):
    """Base of everything that is raised about an age file or its key."""


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
