"""Certificates and keys of TLS: their files and settings, read again when they change, and when they end."""

import errno
import logging
import os
import re
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Protocol

from repoagent.api import read_small_file
from repoagent.errors import InvalidArgumentError
from repoagent.serving.measuring.prometheus import Family

_CIPHERS: Final = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: forward secret and authenticated. Those of TLS 1.3 all are."""

_WHAT: Final = {
    "server-cert": "the server's certificate",
    "server-key": "the server's key",
    "root-cert": "the certificate that signs those of clients",
}
"""What the file of a flag holds."""

_LARGEST: Final = 4 << 20
"""Bytes of a file: the certificates of all public authorities are a tenth of it."""

_PASSING: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO})

Stamp = tuple[tuple[int, int, int, int] | None, ...]
"""Which files these are: compared, never read."""

Contents = tuple[bytes, bytes, bytes]
"""The files in PEM: the key, the certificate, and the root or nothing."""


@dataclass(frozen=True, slots=True)
class Material:
    """One consistent set of files: the key is the certificate's."""

    context: ssl.SSLContext
    end: float | None
    """When the certificate, or one of its chain, ends, in seconds since the epoch; None if that cannot be read."""
    contents: Contents = field(repr=False)
    """What it was made of, for other processes."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificates of one front end are. Paths may be symbolic links that are replaced."""

    service: str
    """For messages: HTTP or gRPC."""
    certificate: str = ""
    key: str = ""
    root: str = ""
    """Certificates that sign those of clients. Without ``mutual`` a client need not present one."""
    mutual: bool = False
    alpn: Sequence[str] = ()
    """The protocols of the front end."""
    flags: str = "--http"
    """How the flags begin that name these files, for messages."""

    def read(self) -> Material:
        """Read each of them, once.

        Raises:
            InvalidArgumentError: a file is missing, cannot be read, or does not fit the others.
        """
        key, certificate = self._bytes(self.key, "server-key"), self._bytes(self.certificate, "server-cert")
        root = self._bytes(self.root, "root-cert") if self.root or self.mutual else b""
        return self.material((key, certificate, root))

    def material(self, contents: Contents) -> Material:
        """The same of files that have been read.

        Raises:
            InvalidArgumentError: one does not fit the others.
        """
        key, certificate, root = contents
        context = self._context(certificate, key)
        if self.root or self.mutual:
            self._verify_clients(context, root)
        return Material(context, earliest_end(certificate), contents)

    def stamp(self) -> Stamp:
        """What changes when a file is written, or a link on the way to it is replaced."""
        return tuple(_stamp(path) for path in (self.key, self.certificate, self.root) if path)

    def _context(self, certificate: bytes, key: bytes) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_ciphers(_CIPHERS)
        context.options |= ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(list(self.alpn))
        try:
            with _in_memory(certificate) as chain, _in_memory(key) as private:
                context.load_cert_chain(chain, private, password=lambda: "")
        except (OSError, ValueError) as error:  # SSLError is an OSError
            raise InvalidArgumentError(
                f"{self.flags}-server-cert '{self.certificate}' and {self.flags}-server-key '{self.key}' are not a "
                f"certificate and its key, in PEM and without a passphrase: {error}"
            ) from error
        return context

    def _verify_clients(self, context: ssl.SSLContext, root: bytes) -> None:
        try:
            with _in_memory(root) as path:
                context.load_verify_locations(path)
        except (OSError, ValueError) as error:
            text = f"{self.flags}-root-cert '{self.root}' holds no certificate in PEM: {error}"
            raise InvalidArgumentError(text) from error
        context.verify_mode = ssl.CERT_REQUIRED if self.mutual else ssl.CERT_OPTIONAL
        # A resumed session would go on with a certificate that is not looked at again.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET

    def _bytes(self, path: str, flag: str) -> bytes:
        if not path:
            raise InvalidArgumentError(f"{self.service} with TLS needs {_WHAT[flag]}: set {self.flags}-{flag}=FILE")
        try:
            return read_small_file(path, limit=_LARGEST)
        except OSError as error:
            raise InvalidArgumentError(f"cannot read {self.flags}-{flag} '{path}': {error.strerror}") from error
        except InvalidArgumentError as error:
            raise InvalidArgumentError(f"cannot read {self.flags}-{flag}: {error}") from error


def _passes(cause: BaseException | None) -> bool:
    """Whether another look may find what was lacking, with the same files."""
    return isinstance(cause, OSError) and not isinstance(cause, ssl.SSLError) and cause.errno in _PASSING


@contextmanager
def _in_memory(content: bytes) -> Iterator[str]:
    """A path of ``content`` for a block: OpenSSL reads files alone, and what was read may have changed since."""
    with open(os.memfd_create("repoagent-tls", os.MFD_CLOEXEC), "wb", buffering=0) as file:
        file.write(content)
        yield f"/proc/self/fd/{file.fileno()}"


def _stamp(path: str) -> tuple[int, int, int, int] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----(?:[^-]|-(?!----))*+-----END CERTIFICATE-----")
_VERSION: Final = 0xA0
_FORMATS: Final = {0x17: "%y%m%d%H%M%SZ", 0x18: "%Y%m%d%H%M%SZ"}
"""UTCTime and GeneralizedTime, as RFC 5280 has them in certificates."""
_BEFORE_VALIDITY: Final = 3
"""Serial number, algorithm, issuer."""


def earliest_end(pem: bytes) -> float | None:
    """The end of the certificate in ``pem`` that ends first, in seconds since the epoch; None if none can be read.

    Python's ``ssl`` gives this only of certificates that a peer has shown.
    """
    try:
        return min(_end(ssl.PEM_cert_to_DER_cert(block.decode("ascii"))) for block in _BLOCK.findall(pem))
    except (IndexError, KeyError, ValueError):
        return None


def _end(der: bytes) -> float:
    _, start, _ = _member(der, 0)  # Certificate
    _, position, _ = _member(der, start)  # TBSCertificate
    tag, _, stop = _member(der, position)
    position = stop if tag == _VERSION else position
    for _ in range(_BEFORE_VALIDITY):
        position = _member(der, position)[2]
    _, position, _ = _member(der, position)  # Validity
    _, _, position = _member(der, position)  # notBefore
    tag, start, stop = _member(der, position)
    return datetime.strptime(der[start:stop].decode("ascii"), _FORMATS[tag]).replace(tzinfo=UTC).timestamp()


def _member(der: bytes, position: int) -> tuple[int, int, int]:
    """Tag of the member at ``position``, and where its content begins and ends."""
    tag, length = der[position], der[position + 1]
    position += 2
    if length >= 0x80:
        size = length & 0x7F
        length = int.from_bytes(der[position : position + size])
        position += size
    return tag, position, position + length


logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0


class HeldCertificates:
    """What new connections get, as it was last given; open ones keep what they began with. No file is read."""

    def __init__(self, files: TlsFiles) -> None:
        """``files``: what the contents are of."""
        self._files = files
        self._material: Material | None = None

    def use(self, contents: Contents) -> None:
        """Have new connections get this.

        Raises:
            InvalidArgumentError: see :meth:`TlsFiles.material`; what was given before stays.
        """
        self._material = self._files.material(contents)

    @property
    def material(self) -> Material:
        """What is good now; replaced as a whole. Something must have been given."""
        assert self._material is not None
        return self._material

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        return self.material.context

    @property
    def end(self) -> float | None:
        """See :attr:`Material.end`; None before something was given, too."""
        return self._material.end if self._material is not None else None

    def watch(self) -> None:
        """There is nothing to look at."""

    def close(self) -> None:
        """There is nothing to end."""


class Certificates(HeldCertificates):
    """Files as they were when they were last good.

    Whatever replaces the files (cert-manager, the kubelet, a person with an editor) may be seen between two of them. So
    files are read once two looks in a row find the same ones. A set that does not fit together leaves the one before it
    in place.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            InvalidArgumentError: they are not a certificate and its key.
        """
        super().__init__(files)
        self.on_change: Callable[[], None] = lambda: None
        """Called when there is another material, before the log states it."""
        self._seen = self._read = files.stamp()
        self._material = files.read()
        self._warn_of_end()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Look at the files every second, on a thread of its own, until :meth:`close`."""
        self._thread = threading.Thread(target=self._watch, name="tls-files", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End that. Twice is once."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join(_LOOK_SECONDS)  # longer only if a file system does not answer
            self._thread = None

    def look(self) -> bool:
        """Read the files if they have changed, and not since the last look; True if new ones are in use."""
        stamp = self._files.stamp()
        settled, self._seen = stamp == self._seen, stamp
        if stamp == self._read or not settled:
            return False
        return self._replace(stamp)

    def _replace(self, stamp: Stamp) -> bool:
        service = self._files.service
        try:
            material = self._files.read()
        except InvalidArgumentError as error:
            if not _passes(error.__cause__):
                self._read = stamp
            logger.error("%s keeps its former TLS certificate: %s", service, error)
            return False
        if self._files.stamp() != stamp:
            return False  # it was still being written
        self._material = material
        self.on_change()
        self._read = stamp
        logger.info("%s uses the TLS certificate that is now in '%s'", service, self._files.certificate)
        self._warn_of_end()
        return True

    def _warn_of_end(self) -> None:
        """An expired certificate is served, as some clients take it: the operator must hear why others do not."""
        service, path, end = self._files.service, self._files.certificate, self.end
        if end is not None and end <= time.time():
            day = datetime.fromtimestamp(end, UTC).date()
            logger.warning("%s: the TLS certificate in '%s' expired on %s, clients refuse it", service, path, day)

    def _watch(self) -> None:
        while not self._ended.wait(_LOOK_SECONDS):
            try:
                self.look()
            except Exception:  # the next look may do better
                logger.exception("the TLS certificate of %s could not be looked at", self._files.service)


_NAME: Final = "repoagent_tls_certificate_expiry_timestamp_seconds"
_HELP: Final = "When the TLS certificate of a port ends, or one of its chain, in seconds since the epoch"


class Port(Protocol):
    """A front end."""

    @property
    def certificate_end(self) -> float | None:
        """When the certificate that new connections get ends, in seconds since the epoch; None without TLS."""


class CertificateMetrics:
    """Asks the ports that ``ports`` gives, by their names, for the certificates that they have at the moment."""

    def __init__(self, ports: Callable[[], Mapping[str, Port]]) -> None:
        self._ports = ports

    def families(self) -> Iterable[Family]:
        """A gauge for each port with TLS."""
        ends = {name: port.certificate_end for name, port in self._ports().items()}
        return [Family(_NAME, "gauge", _HELP, [((("port", name),), end) for name, end in ends.items() if end])]
