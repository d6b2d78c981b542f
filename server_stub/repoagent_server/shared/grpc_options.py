"""Settings of the gRPC front end; names and defaults are those of Triton's ``KServeGrpc.Options``."""

import logging
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from repoagent_server.shared.memory import default_message_bytes
from repoagent_server.tls.files import TlsFiles

__all__ = ["COMPRESSION_LEVELS", "GrpcCompressionLevel", "GrpcOptions"]

logger = logging.getLogger(__name__)

COMPRESSION_LEVELS: Final = ("none", "low", "medium", "high")


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
    max_message_bytes: int = field(default_factory=default_message_bytes)
    """Largest message in either direction; -1 for no limit."""

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
