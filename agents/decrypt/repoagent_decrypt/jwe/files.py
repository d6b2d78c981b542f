"""File to file, in pieces: memory stays flat, and what was written is removed unless the tag fits."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.keywrap import InvalidUnwrap, aes_key_unwrap

from repoagent_decrypt.files.errors import DamagedError, WrongKeyError
from repoagent_decrypt.files.positional import Progress, Sizes, new_file, write_at
from repoagent_decrypt.jwe.envelope import Envelope, decode, read_envelope
from repoagent_decrypt.jwe.keys import JweKey

_WRAPS: Final = {"A128KW": 16, "A192KW": 24, "A256KW": 32}
_OAEP: Final = {"RSA-OAEP": hashes.SHA1, "RSA-OAEP-256": hashes.SHA256}
_KNOWN: Final = ("dir", *_WRAPS, *_OAEP)


def content_keys(envelope: Envelope, keys: Sequence[JweKey]) -> Iterator[bytes]:
    """The content keys that ``keys`` lead to. Only the content's own tag shows which one is right.

    Raises:
        DamagedError: the header asks for an algorithm that is not supported.
    """
    if envelope.algorithm not in _KNOWN:
        raise DamagedError(f"the key is wrapped with {envelope.algorithm!r}, expected one of {', '.join(_KNOWN)}")
    for key in keys:
        if envelope.kid is not None and key.kid is not None and key.kid != envelope.kid:
            continue
        found = _unwrap(envelope, key.secret)
        if found is not None and len(found) == envelope.key_size:
            yield found


def _unwrap(envelope: Envelope, secret: bytes | rsa.RSAPrivateKey) -> bytes | None:
    """The content key; None if ``secret`` is of another kind, or another key."""
    algorithm = envelope.algorithm
    try:
        if isinstance(secret, rsa.RSAPrivateKey):
            if algorithm not in _OAEP:
                return None
            chosen = _OAEP[algorithm]
            return secret.decrypt(envelope.wrapped, padding.OAEP(padding.MGF1(chosen()), chosen(), None))
        if algorithm == "dir":
            return secret if not envelope.wrapped else None
        return aes_key_unwrap(secret, envelope.wrapped) if _WRAPS.get(algorithm) == len(secret) else None
    except (InvalidUnwrap, ValueError):
        return None


_PIECE: Final = 4 << 20
"""Characters at a time; a multiple of four."""


def plain_size(path: Path) -> int:
    """How many bytes of plaintext the file ``path`` has.

    Raises:
        DamagedError: not a JWE in the compact form, or not one that is supported.
    """
    with path.open("rb", buffering=0) as stream:
        return read_envelope(stream.fileno()).plain_size


def decrypt_file(source: Path, target: Path, keys: Sequence[JweKey], progress: Progress | None = None) -> Sizes:
    """Decrypt ``source`` into the new file ``target`` (mode 0600), which exists afterwards only if it is authentic.

    Raises:
        WrongKeyError: none of ``keys`` fits, or the file was changed: the format cannot distinguish these.
        DamagedError: not a JWE in the compact form, or not one that is supported.
        OSError: a file cannot be read or written; ``FileExistsError`` if ``target`` exists.
    """
    with source.open("rb", buffering=0) as stream:
        fd = stream.fileno()
        envelope = read_envelope(fd)
        for key in content_keys(envelope, keys):
            try:
                with new_file(target) as out:
                    written = _decrypt(envelope, key, fd, out, progress)
                return Sizes(os.fstat(fd).st_size, written)
            except InvalidTag:
                continue
    raise WrongKeyError(f"no key fits (wrapped with {envelope.algorithm}), or the file was changed")


def _decrypt(envelope: Envelope, key: bytes, source: int, target: int, progress: Progress | None) -> int:
    """Raises ``InvalidTag`` at the end if the content is not authentic."""
    decryptor = Cipher(algorithms.AES(key), modes.GCM(envelope.nonce, envelope.tag)).decryptor()
    decryptor.authenticate_additional_data(envelope.protected)
    written = 0
    for start in range(envelope.start, envelope.end, _PIECE):
        size = min(_PIECE, envelope.end - start)
        text = os.pread(source, size, start)
        if len(text) != size:
            raise DamagedError("the file became shorter while it was read")
        plain = decryptor.update(decode(text, "the ciphertext"))
        write_at(target, memoryview(plain), written)
        written += len(plain)
        if progress is not None:
            progress(written)
    decryptor.finalize()
    return written
