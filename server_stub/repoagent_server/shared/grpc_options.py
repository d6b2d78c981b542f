"""Settings of the gRPC front end; names and defaults are those of Triton's ``KServeGrpc.Options``."""

import logging
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from repoagent_server.shared.memory import default_message_bytes
from repoagent_server.tls.files import TlsFiles

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

    def tls_files(self) -> TlsFiles | None:
        """The files of TLS, None without it."""
        if self.use_ssl or self.use_mutual_auth:
            files = (self.server_cert, self.server_key, self.root_cert)
            return TlsFiles("gRPC", *files, self.use_mutual_auth, ("h2",), "--grpc")
        if self.server_cert or self.server_key or self.root_cert:
            logger.warning("gRPC is served WITHOUT TLS: certificates and keys have no effect without --grpc-use-ssl")
        return None
