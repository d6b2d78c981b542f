"""The attestor: signs both statements of a load, and writes them."""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any, Final

from repoagent.api import UnavailableError, replace_file
from repoagent.api.attesting import Attestation, AttestedLoad, AttestorOptions
from repoagent.api.envelopes import read_private_key, sign, to_json
from repoagent_attest.signers import Signer, is_reference
from repoagent_attest.statements import details_of, summary_of

SUMMARY_SUFFIX: Final = ".vsa.json"
DETAILS_SUFFIX: Final = ".load.json"
_UNUSUAL: Final = re.compile(r"[^A-Za-z0-9_.-]")


class DsseAttestor:
    """Signs with one key. Thread-safe.

    Raises:
        InvalidArgumentError: the key is of another kind.
        UnsupportedError: the key is a signer's, whose package is not installed.
        UnavailableError: the directory cannot be written to, or the signer does not sign.
    """

    def __init__(self, options: AttestorOptions) -> None:
        self._key = Signer(options.key) if is_reference(options.key) else read_private_key(options.key)
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
