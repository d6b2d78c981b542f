"""What can be wrong with an encrypted file or a key, in any format. Texts never contain key material."""


class DecryptError(ValueError):
    """Base of everything that the formats raise about a file or a key."""


class DamagedError(DecryptError):
    """The file was truncated, extended, reordered or changed, or is not of the format that it seems to be."""


class WrongKeyError(DecryptError):
    """No key that was given opens the file."""


class KeyFormatError(DecryptError):
    """What a reference leads to is not a key of the expected kind."""
