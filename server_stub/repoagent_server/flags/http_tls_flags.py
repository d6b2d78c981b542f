"""The flags of ``repoagent serve`` for TLS over HTTP, named after Triton's for gRPC."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import click

from repoagent_server.flags.values import boolean
from repoagent_server.tls.files import TlsFiles

_F = TypeVar("_F", bound=Callable[..., Any])

_DECORATORS: Final = (
    boolean("--http-use-ssl", default=False, help="TLS for HTTP; needs the server's certificate and key."),
    boolean(
        "--http-use-ssl-mutual",
        default=False,
        help="TLS; clients need a certificate signed by --http-root-cert.",
    ),
    click.option("--http-server-cert", default="", metavar="FILE", help="Certificate of the server (PEM)."),
    click.option("--http-server-key", default="", metavar="FILE", help="Key of the server (PEM)."),
    click.option("--http-root-cert", default="", metavar="FILE", help="CA certificate for client certificates (PEM)."),
    boolean("--metrics-use-ssl", default=False, help="TLS for the metrics port, with the certificates of HTTP."),
)


@dataclass(frozen=True, slots=True)
class HttpTls:
    """None for a port without TLS."""

    http: TlsFiles | None = None
    metrics: TlsFiles | None = None


def http_tls_flags(command: _F) -> _F:
    """Give ``command`` the flags."""
    for decorator in reversed(_DECORATORS):
        command = decorator(command)
    return command


def take_http_tls(values: dict[str, Any]) -> tuple[HttpTls, tuple[str, ...]]:
    """Take the flags' values out of ``values``: what is served with TLS, and warnings."""
    wanted, mutual = values.pop("http_use_ssl"), values.pop("http_use_ssl_mutual")
    certificate, key, root = (values.pop(f"http_{name}") for name in ("server_cert", "server_key", "root_cert"))
    metrics = values.pop("metrics_use_ssl")
    files = TlsFiles("HTTP", certificate, key, root, mutual, ("http/1.1",))
    tls = HttpTls(
        files if wanted or mutual else None,
        replace(files, service="the metrics port") if metrics else None,
    )
    unused = (certificate or key or root) and tls == HttpTls()
    warning = "HTTP is served WITHOUT TLS: certificates and keys have no effect without --http-use-ssl"
    return tls, (warning,) if unused else ()
