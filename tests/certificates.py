"""Certificates for tests, made by openssl: an authority, and what it signs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

_NEW = "openssl req -x509 -nodes -days 2 -newkey"
_EC = "ec -pkeyopt ec_paramgen_curve:P-256"
LOCAL = ("DNS:localhost", "IP:127.0.0.1")


@dataclass(frozen=True)
class Pair:
    """The files of a certificate and its key."""

    certificate: str
    key: str


class Authority:
    """Signs certificates, in files below ``folder``."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self.root = str(folder / f"{name}.pem")
        self._key = str(folder / f"{name}.key")
        usage = ("-addext", "keyUsage=critical,keyCertSign,cRLSign")  # Python 3.13 looks for it
        _run(f"{_NEW} {_EC}", "-subj", f"/CN={name}", *usage, "-keyout", self._key, "-out", self.root)

    def issue(self, name: str, names: tuple[str, ...] = LOCAL, *more: str, key: str = _EC) -> Pair:
        """A certificate with the common name ``name`` and alternative ``names``, and a ``key``, as openssl has them."""
        pair = Pair(str(self._folder / f"{name}.pem"), str(self._folder / f"{name}.key"))
        alternatives = ("-addext", f"subjectAltName={','.join(names)}") if names else ()
        signed = ("-CA", self.root, "-CAkey", self._key, "-addext", "basicConstraints=critical,CA:FALSE")
        files = ("-keyout", pair.key, "-out", pair.certificate)
        _run(f"{_NEW} {key}", "-subj", f"/CN={name}", *alternatives, *signed, *files, *more)
        return pair


def _run(command: str, *more: str) -> None:
    subprocess.run([*command.split(), *more], check=True, capture_output=True)
