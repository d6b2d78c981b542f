"""The certificate that new connections get: read again when its files change."""

import logging
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Final, Protocol

from repoagent.errors import InvalidArgumentError
from repoagent.server.exposition.text import Family
from repoagent_server.tls.files import Material, Stamp, TlsFiles

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 1.0


class Certificates:
    """Files as they were when they were last good. Open connections keep what they began with.

    Whatever replaces the files (cert-manager, the kubelet, a person with an editor) may be seen between two of them. So
    files are read once two looks in a row find the same ones. A set that does not fit together leaves the one before it
    in place.
    """

    def __init__(self, files: TlsFiles) -> None:
        """Read the files.

        Raises:
            InvalidArgumentError: they are not a certificate and its key.
        """
        self._files = files
        self._seen = self._read = files.stamp()
        self._material = files.read()
        self._warn_of_end()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def material(self) -> Material:
        """What is good now; replaced as a whole."""
        return self._material

    @property
    def context(self) -> ssl.SSLContext:
        """For the next connection."""
        return self._material.context

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
            self._read = stamp
            logger.error("%s keeps its former TLS certificate: %s", service, error)
            return False
        if self._files.stamp() != stamp:
            return False  # it was still being written
        self._read = stamp
        self._material = material
        logger.info("%s uses the TLS certificate that is now in '%s'", service, self._files.certificate)
        self._warn_of_end()
        return True

    def _warn_of_end(self) -> None:
        """An expired certificate is served, as some clients take it: the operator must hear why others do not."""
        service, path, end = self._files.service, self._files.certificate, self._material.end
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
