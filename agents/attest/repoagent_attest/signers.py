"""``signer:URI#PUBLIC_KEY``: a key that never leaves its place signs, through securesystemslib. Extra ``kms``.

``URI`` is one of securesystemslib's, such as ``awskms:alias/receipts`` or ``hv:receipts/1``. ``PUBLIC_KEY`` is the path
of a file: what is signed must hold with that key. Credentials come from where the signer's own library looks for them.
"""

import threading
from importlib import import_module
from typing import Any, Final

from repoagent.api import InvalidArgumentError, UnavailableError, UnsupportedError, install_hint, read_small_file
from repoagent.api.envelopes import PublicKey, holds, key_id, read_public_key

_SCHEME: Final = b"signer:"
_LARGEST: Final = 1 << 20
_PROBE: Final = b"repoagent: whether this signer has the private key"


def reference(uri: str) -> bytes:
    """The reference itself, where other key providers return a key: :class:`Signer` is what it leads to."""
    return uri.encode()


def is_reference(key: bytes) -> bool:
    """Whether a key is one that :class:`Signer` takes."""
    return key.startswith(_SCHEME)


class Signer:
    """Signs as an Ed25519 key of ``cryptography`` does: ``sign`` takes the message. Thread-safe.

    Raises:
        InvalidArgumentError: not a reference of this form, or its signer does not have the private key.
        UnsupportedError: the package is not installed.
        UnavailableError: the public key cannot be read, or the signer does not answer.
    """

    def __init__(self, key: bytes) -> None:
        uri, _, path = key.removeprefix(_SCHEME).decode(errors="replace").rpartition("#")
        self._scheme = uri.partition(":")[0]
        if not uri or not path.startswith("/"):
            raise InvalidArgumentError(
                "the reference signer:... has no absolute path of a public key; expected signer:URI#/path"
            )
        try:
            self._public = read_public_key(read_small_file(path, limit=_LARGEST))
        except OSError as error:
            raise UnavailableError(f"the public key {path} cannot be read: {error.strerror}") from None
        self._signer = _open(uri, self._scheme, self._public)
        self._turn = threading.Lock()  # a session with a token is one thread's at a time
        self.sign(_PROBE)

    def public_key(self) -> PublicKey:
        """The public half of the key that signs."""
        return self._public

    def sign(self, message: bytes) -> bytes:
        """A signature of ``message`` that holds with :meth:`public_key`. Errors as of the constructor."""
        try:
            with self._turn:
                signature = bytes.fromhex(self._signer.sign(message).signature)
        except Exception as error:  # each signer has errors of its own
            raise _failed(self._scheme, error) from None
        if not holds(signature, message, self._public):
            raise InvalidArgumentError(f"the signer {self._scheme}: has another key than the public key beside it")
        return signature


def _open(uri: str, scheme: str, public: PublicKey) -> Any:
    try:
        signers: Any = import_module("securesystemslib.signer")
    except ImportError:
        raise UnsupportedError(f"signer: needs securesystemslib; {install_hint('repoagent-attest', 'kms')}") from None
    if scheme not in signers.SIGNER_FOR_URI_SCHEME:
        known = ", ".join(f"{name}:" for name in sorted(signers.SIGNER_FOR_URI_SCHEME))
        raise InvalidArgumentError(f"the reference signer:... names no signer of securesystemslib; it has {known}")
    try:
        known = signers.SSlibKey.from_crypto(public, keyid=key_id(public))
        return signers.Signer.from_priv_key_uri(uri, known)
    except Exception as error:
        raise _failed(scheme, error) from None


def _failed(scheme: str, error: Exception) -> UnavailableError:
    """The text of a foreign error may hold a credential: only that of a missing package is repeated."""
    missing = type(error).__name__ in ("UnsupportedLibraryError", "ModuleNotFoundError", "ImportError")
    reason = f"{error}; install securesystemslib[{scheme}]" if missing else type(error).__name__
    return UnavailableError(f"the signer {scheme}: does not sign: {reason}")
