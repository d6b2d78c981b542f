"""When the certificates of the ports end, for the metrics page."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from repoagent.server.exposition.text import Family

__all__ = ["CertificateMetrics", "Port"]

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
