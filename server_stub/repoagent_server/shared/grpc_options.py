"""Settings of the gRPC front end; names and defaults are those of Triton's ``KServeGrpc.Options``."""

import logging
import ssl
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

from repoagent.errors import InvalidArgumentError
from repoagent_server.shared.memory import default_message_bytes

if TYPE_CHECKING:
    import grpc

__all__ = ["COMPRESSION_LEVELS", "DEFAULT_TRANSPORT", "TRANSPORTS", "GrpcCompressionLevel", "GrpcOptions"]

logger = logging.getLogger(__name__)

COMPRESSION_LEVELS: Final = ("none", "low", "medium", "high")
TRANSPORTS: Final = ("builtin", "grpcio")
"""What carries gRPC: HTTP/2 of this server, or the library."""
DEFAULT_TRANSPORT: Final = "builtin"


class GrpcCompressionLevel(IntEnum):
    """``Grpc_compression_level`` of Triton. ``COUNT`` is how many levels there are, not one of them."""

    NONE = 0
    LOW = 1
    MED = 2
    HIGH = 3
    COUNT = 4


@dataclass(frozen=True, slots=True)
class GrpcOptions:
    """Where to listen, and how. Times are in milliseconds."""

    address: str = "127.0.0.1"
    port: int = 8001
    reuse_port: bool = False
    use_ssl: bool = False
    server_cert: str = ""
    server_key: str = ""
    root_cert: str = ""
    use_mutual_auth: bool = False
    keepalive_time_ms: int = 7_200_000
    keepalive_timeout_ms: int = 20_000
    keepalive_permit_without_calls: bool = False
    http2_max_pings_without_data: int = 2
    http2_min_recv_ping_interval_without_data_ms: int = 300_000
    http2_max_ping_strikes: int = 2
    max_connection_age_ms: int = 0
    max_connection_age_grace_ms: int = 0
    infer_compression_level: str | int = "none"
    """One of ``COMPRESSION_LEVELS``, or its number as in :class:`GrpcCompressionLevel`."""
    forward_header_pattern: str = ""
    """Which metadata of an inference request reach the model as parameters: a regular expression; "" for none."""
    transport: str = DEFAULT_TRANSPORT
    """One of ``TRANSPORTS``."""
    max_message_bytes: int = field(default_factory=default_message_bytes)
    """Largest message in either direction; -1 for no limit."""

    def channel_options(self) -> list[tuple[str, int]]:
        """The settings as grpc takes them."""
        options = [
            ("grpc.so_reuseport", int(self.reuse_port)),
            ("grpc.max_receive_message_length", self.max_message_bytes),
            ("grpc.max_send_message_length", self.max_message_bytes),
            ("grpc.keepalive_time_ms", self.keepalive_time_ms),
            ("grpc.keepalive_timeout_ms", self.keepalive_timeout_ms),
            ("grpc.keepalive_permit_without_calls", int(self.keepalive_permit_without_calls)),
            ("grpc.http2.max_pings_without_data", self.http2_max_pings_without_data),
            (
                "grpc.http2.min_recv_ping_interval_without_data_ms",
                self.http2_min_recv_ping_interval_without_data_ms,
            ),
            ("grpc.http2.max_ping_strikes", self.http2_max_ping_strikes),
        ]
        if self.max_connection_age_ms:
            options.append(("grpc.max_connection_age_ms", self.max_connection_age_ms))
        if self.max_connection_age_grace_ms:
            options.append(("grpc.max_connection_age_grace_ms", self.max_connection_age_grace_ms))
        return options

    def compression(self) -> "grpc.Compression":
        """Triton has levels; grpcio knows only whether to compress."""
        import grpc

        return grpc.Compression.Gzip if self.compression_level() else grpc.Compression.NoCompression

    def compression_level(self) -> int:
        """0 for none, up to 3."""
        level = self.infer_compression_level
        return level if isinstance(level, int) else COMPRESSION_LEVELS.index(level.lower())

    def credentials(self) -> "grpc.ServerCredentials | None":
        """TLS credentials, or None without TLS.

        Raises:
            InvalidArgumentError: a file is missing, cannot be read, or does not fit the others.
        """
        if not self._wants_tls():
            return None
        import grpc

        key, certificate, root = self._read_files()
        self._context()
        return grpc.ssl_server_credentials([(key, certificate)], root, self.use_mutual_auth)

    def tls_context(self) -> ssl.SSLContext | None:
        """The same for a transport that is not grpc's. Raises as :meth:`credentials`."""
        if not self._wants_tls():
            return None
        self._read_files()
        context = self._context()
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["h2"])
        if self.use_mutual_auth:
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _wants_tls(self) -> bool:
        if self.use_ssl or self.use_mutual_auth:
            return True
        if self.server_cert or self.server_key or self.root_cert:
            logger.warning("gRPC is served WITHOUT TLS: certificates and keys mean nothing without --grpc-use-ssl")
        return False

    def _read_files(self) -> tuple[bytes, bytes, bytes | None]:
        """The key, the certificate and the root certificate."""
        key, certificate = _read(self.server_key, "server key"), _read(self.server_cert, "server certificate")
        root = _read(self.root_cert, "root certificate") if self.root_cert or self.use_mutual_auth else None
        return key, certificate, root

    def _context(self) -> ssl.SSLContext:
        """The files as OpenSSL reads them: what is wrong with them, grpc does not report."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.server_cert, self.server_key, password=lambda: "")
        except ssl.SSLError as error:
            raise InvalidArgumentError(
                f"'{self.server_cert}' and '{self.server_key}' are not a certificate and its key, in PEM and without a "
                f"passphrase: {error}"
            ) from error
        try:
            if self.root_cert:
                context.load_verify_locations(self.root_cert)
        except ssl.SSLError as error:
            raise InvalidArgumentError(f"'{self.root_cert}' holds no certificate in PEM: {error}") from error
        return context


def _read(path: str, what: str) -> bytes:
    if not path:
        raise InvalidArgumentError(f"gRPC with TLS needs the file of the {what}")
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidArgumentError(f"cannot read the {what} '{path}': {error.strerror}") from error
