"""The flags of ``repoagent serve`` for gRPC, by Triton's names."""

from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from repoagent_server.flags.values import HEADER_PATTERN, boolean, number
from repoagent_server.shared.grpc_options import COMPRESSION_LEVELS, GrpcOptions
from repoagent_server.shared.memory import default_message_bytes

__all__ = ["grpc_flags", "take_grpc_options"]

_F = TypeVar("_F", bound=Callable[..., Any])

#: Flag -> field of GrpcOptions, where the names differ by more than the prefix.
_FIELDS: Final = {
    "reuse_grpc_port": "reuse_port",
    "grpc_use_ssl": "use_ssl",
    "grpc_use_ssl_mutual": "use_mutual_auth",
    "grpc_server_cert": "server_cert",
    "grpc_server_key": "server_key",
    "grpc_root_cert": "root_cert",
    "grpc_infer_response_compression_level": "infer_compression_level",
    "grpc_keepalive_time": "keepalive_time_ms",
    "grpc_keepalive_timeout": "keepalive_timeout_ms",
    "grpc_keepalive_permit_without_calls": "keepalive_permit_without_calls",
    "grpc_http2_max_pings_without_data": "http2_max_pings_without_data",
    "grpc_http2_min_recv_ping_interval_without_data": "http2_min_recv_ping_interval_without_data_ms",
    "grpc_http2_max_ping_strikes": "http2_max_ping_strikes",
    "grpc_max_message_size": "max_message_bytes",
    "grpc_max_connection_age": "max_connection_age_ms",
    "grpc_max_connection_age_grace": "max_connection_age_grace_ms",
    "grpc_address": "address",
    "grpc_header_forward_pattern": "forward_header_pattern",
}

_DECORATORS: Final = (
    boolean("--allow-grpc", default=True, help="Serve gRPC."),
    click.option("--grpc-address", default="127.0.0.1", show_default=True, help="Address to listen on for gRPC."),
    click.option(
        "--grpc-port",
        type=click.IntRange(0, 65535),
        help="Port for gRPC; 0 takes a free one.  [default: 8001, or a free one beside --http-port=0]",
    ),
    boolean("--reuse-grpc-port", default=False, help="Let other servers listen on the same gRPC port."),
    click.option(
        "--grpc-header-forward-pattern",
        type=HEADER_PATTERN,
        default="",
        help="Regular expression; headers whose names match it reach the model as parameters.",
    ),
    boolean("--grpc-use-ssl", default=False, help="TLS for gRPC; needs the server's certificate and key."),
    boolean(
        "--grpc-use-ssl-mutual",
        default=False,
        help="TLS; clients need a certificate signed by --grpc-root-cert.",
    ),
    click.option("--grpc-server-cert", default="", metavar="FILE", help="Certificate of the server (PEM)."),
    click.option("--grpc-server-key", default="", metavar="FILE", help="Key of the server (PEM)."),
    click.option("--grpc-root-cert", default="", metavar="FILE", help="CA certificate for client certificates (PEM)."),
    click.option(
        "--grpc-infer-response-compression-level",
        type=click.Choice(COMPRESSION_LEVELS, case_sensitive=False),
        default="none",
        show_default=True,
        help="Compression of gRPC responses; every level but none is gzip.",
    ),
    number("--grpc-keepalive-time", default=7_200_000, low=1, help="Milliseconds of silence before a keepalive ping."),
    number("--grpc-keepalive-timeout", default=20_000, low=1, help="Milliseconds to wait for the answer to a ping."),
    boolean("--grpc-keepalive-permit-without-calls", default=False, help="Ping connections without a call, too."),
    number("--grpc-http2-max-pings-without-data", default=2, low=0, help="Pings with no data between; 0 for no limit."),
    number(
        "--grpc-http2-min-recv-ping-interval-without-data",
        default=300_000,
        low=0,
        help="Milliseconds that a client must leave between pings without data.",
    ),
    number("--grpc-http2-max-ping-strikes", default=2, low=0, help="Bad pings before a connection is closed."),
    click.option(
        "--grpc-max-message-size",
        type=click.IntRange(-1, 2**31 - 1),
        default=default_message_bytes,
        help="Largest message in either direction, in bytes once decompressed; -1 for no limit.  [default: a sixteenth "
        "of the memory, from 64 MiB to 2 GiB]",
    ),
    number("--grpc-max-connection-age", default=0, low=0, help="Milliseconds until a connection is closed; 0: never."),
    number("--grpc-max-connection-age-grace", default=0, low=0, help="Further milliseconds for running calls."),
)


def grpc_flags(command: _F) -> _F:
    """Give ``command`` the flags for gRPC."""
    for decorator in reversed(_DECORATORS):
        command = decorator(command)
    return command


def take_grpc_options(values: dict[str, Any], *, default_port: int) -> GrpcOptions:
    """Take the flags' values out of ``values`` (all but ``allow_grpc``) and make options of them."""
    port = values.pop("grpc_port")
    fields = {field: values.pop(flag) for flag, field in _FIELDS.items()}
    return GrpcOptions(port=default_port if port is None else port, **fields)
