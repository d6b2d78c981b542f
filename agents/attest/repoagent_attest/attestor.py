"""The attestor: signs both statements of a load, with a key of its own or one that never leaves its place."""

import hashlib
import os
import re
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from repoagent.api import (
    InvalidArgumentError,
    UnavailableError,
    UnsupportedError,
    install_hint,
    read_small_file,
    replace_file,
)
from repoagent.api.attesting import Attestation, AttestedLoad, AttestorOptions
from repoagent.api.envelopes import PublicKey, holds, key_id, read_private_key, read_public_key, sign, to_json
from repoagent_attest.statements import DETAILS_SUFFIX, SUMMARY_SUFFIX, details_of, summary_of

_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9_.-]")
_SCHEME: Final = b"signer:"
_LARGEST: Final = 1 << 20
_PROBE: Final = b"repoagent: whether this signer has the private key"


class DsseAttestor:
    """Signs with one key. Thread-safe.

    Raises:
        InvalidArgumentError: the key is of another kind.
        UnsupportedError: the key is a signer's, whose package is not installed.
        UnavailableError: the directory cannot be written to, or the signer does not sign.
    """

    def __init__(self, options: AttestorOptions) -> None:
        self._key = Signer(options.key) if _is_reference(options.key) else read_private_key(options.key)
        self._verifier = options.verifier
        self._directory = options.directory
        if self._directory is not None:
            _check_directory(self._directory)

    def attest(self, load: AttestedLoad) -> Attestation:
        """See :class:`repoagent.api.attesting.Attestor`."""
        details = to_json(details_of(load, self._verifier))
        summary = to_json(summary_of(load, self._verifier, hashlib.sha256(details).hexdigest()))
        bundles = {DETAILS_SUFFIX: sign(details, self._key), SUMMARY_SUFFIX: sign(summary, self._key)}
        digest = hashlib.sha256(summary).hexdigest()
        if self._directory is not None:
            _write(self._directory, _file_name(load.report.model), bundles)
        document = {"summary": bundles[SUMMARY_SUFFIX], "details": bundles[DETAILS_SUFFIX]}
        return Attestation(to_json(document), digest)


def _file_name(model: str) -> str:
    """Sorted by time, and never one that another load has."""
    moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    return f"{_UNUSUAL.sub('_', model)[:100]}-{moment}-{secrets.token_hex(4)}"


def _check_directory(directory: Path) -> None:
    if not directory.is_dir():
        raise UnavailableError(f"the directory of receipts {directory} does not exist")
    if not os.access(directory, os.W_OK | os.X_OK):
        raise UnavailableError(f"the directory of receipts {directory} cannot be written to")


def _write(directory: Path, name: str, bundles: Mapping[str, Any]) -> None:
    """Both or none: the details first, so that where there is a summary, what it names is there."""
    with ExitStack() as written:
        for suffix, bundle in bundles.items():
            path = directory / (name + suffix)
            try:
                replace_file(path, to_json(bundle))
            except OSError as error:
                raise UnavailableError(f"{path.name} cannot be written: {error.strerror}") from error
            written.callback(_remove, path)
        written.pop_all()


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def reference(uri: str) -> bytes:
    """The reference itself, where other key providers return a key: :class:`Signer` is what it leads to."""
    return uri.encode()


def _is_reference(key: bytes) -> bool:
    """Whether a key is one that :class:`Signer` takes."""
    return key.startswith(_SCHEME)


class Signer:
    """A key that signs where it is, through securesystemslib (extra ``kms``): ``signer:URI#PUBLIC_KEY``.

    ``URI`` is one of securesystemslib's, such as ``awskms:alias/receipts`` or ``hv:receipts/1``. ``PUBLIC_KEY`` is the
    path of a file: what is signed must hold with that key. Credentials come from where the signer's own library looks
    for them. ``sign`` takes the message, as that of ``cryptography``'s Ed25519 keys does. Thread-safe.

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
