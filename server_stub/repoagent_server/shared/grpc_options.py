"""Settings of the gRPC front end; names and defaults are those of Triton's ``KServeGrpc.Options``."""

import logging
import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Final

from repoagent.loader.settings import setting
from repoagent_server.tls.certificates import TlsFiles

logger = logging.getLogger(__name__)


_SHARE: Final = 16
"""gRPC holds a message up to eight times while it is received, parsed and answered; two at once must fit."""
_LEAST: Final = 1 << 26
_MOST: Final = (1 << 31) - 1
_CGROUPS: Final = Path("/sys/fs/cgroup")


def default_message_bytes() -> int:
    """A sixteenth of the memory, at least 64 MiB and at most what gRPC can count, as Triton's default."""
    return min(_MOST, max(_LEAST, memory_bytes() // _SHARE))


def memory_bytes(cgroups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """The memory of the machine, or less where a control group (of a container, of a service) allows less."""
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *_allowed(cgroups, own)])


def _allowed(cgroups: Path, own: Path) -> list[int]:
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    group = next((line.removeprefix("0::").lstrip("/") for line in lines if line.startswith("0::")), "")
    folders = [cgroups / group, *(cgroups / group).parents]
    files = [folder / "memory.max" for folder in folders if folder.is_relative_to(cgroups)]
    return [limit for file in (*files, cgroups / "memory" / "memory.limit_in_bytes") if (limit := _number(file))]


def _number(file: Path) -> int:
    try:
        text = file.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdigit() else 0


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

    address: str = setting("127.0.0.1", "Address to listen on for gRPC.", "--grpc-address")
    port: int = 8001
    reuse_port: bool = setting(False, "Let other servers listen on the same gRPC port.", "--reuse-grpc-port")
    use_ssl: bool = setting(False, "TLS for gRPC; needs the server's certificate and key.", "--grpc-use-ssl")
    server_cert: str = setting("", "Certificate of the server (PEM).", "--grpc-server-cert", metavar="FILE")
    server_key: str = setting("", "Key of the server (PEM).", "--grpc-server-key", metavar="FILE")
    root_cert: str = setting("", "CA certificate for client certificates (PEM).", "--grpc-root-cert", metavar="FILE")
    use_mutual_auth: bool = setting(
        False, "TLS; clients need a certificate signed by --grpc-root-cert.", "--grpc-use-ssl-mutual"
    )
    keepalive_time_ms: int = setting(
        7_200_000, "Milliseconds of silence before a keepalive ping.", "--grpc-keepalive-time", least=1
    )
    keepalive_timeout_ms: int = setting(
        20_000, "Milliseconds to wait for the answer to a ping.", "--grpc-keepalive-timeout", least=1
    )
    keepalive_permit_without_calls: bool = setting(
        False, "Ping connections without a call, too.", "--grpc-keepalive-permit-without-calls"
    )
    http2_max_pings_without_data: int = setting(
        2, "Pings with no data between; 0 for no limit.", "--grpc-http2-max-pings-without-data", least=0
    )
    http2_min_recv_ping_interval_without_data_ms: int = setting(
        300_000,
        "Milliseconds that a client must leave between pings without data.",
        "--grpc-http2-min-recv-ping-interval-without-data",
        least=0,
    )
    http2_max_ping_strikes: int = setting(
        2, "Bad pings before a connection is closed.", "--grpc-http2-max-ping-strikes", least=0
    )
    max_connection_age_ms: int = setting(
        0, "Milliseconds until a connection is closed; 0: never.", "--grpc-max-connection-age", least=0
    )
    max_connection_age_grace_ms: int = setting(
        0, "Further milliseconds for running calls.", "--grpc-max-connection-age-grace", least=0
    )
    infer_compression_level: str | int = setting(
        "none",
        "Compression of gRPC responses; every level but none is gzip.",
        "--grpc-infer-response-compression-level",
        kind=COMPRESSION_LEVELS,
    )
    """One of ``COMPRESSION_LEVELS``, or its number as in :class:`GrpcCompressionLevel`."""
    forward_header_pattern: str = setting(
        "",
        "Regular expression; headers whose names match it reach the model as parameters.",
        "--grpc-header-forward-pattern",
        kind="pattern",
    )
    max_message_bytes: int = setting(
        None,
        "Largest message in either direction, in bytes once decompressed; -1 for no limit.  [default: a sixteenth of "
        "the memory, from 64 MiB to 2 GiB]",
        "--grpc-max-message-size",
        least=-1,
        most=2**31 - 1,
        factory=default_message_bytes,
    )

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
