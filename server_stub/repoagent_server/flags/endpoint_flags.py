"""The flags of ``repoagent serve`` for its endpoints: SageMaker, Vertex AI, metrics, TLS over HTTP, restricted parts.

No message repeats the value of a restricted part, which is a secret.
"""

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import click

from repoagent.cli.flags import boolean, take
from repoagent.errors import InvalidArgumentError, did_you_mean
from repoagent.loader.settings import setting
from repoagent.server.exposition.page import MetricsSettings, read_metrics_settings
from repoagent_server.handlers.headers import Api, Restriction
from repoagent_server.http.hosting.sagemaker import SageMakerOptions
from repoagent_server.http.hosting.vertex import VertexOptions
from repoagent_server.tls.certificates import TlsFiles

_F = TypeVar("_F", bound=Callable[..., Any])
_RANGE: Final = re.compile(r"(\d{1,5})-(\d{1,5})", re.ASCII)


def _flags(*decorators: Callable[[_F], _F]) -> Callable[[_F], _F]:
    """What gives a command all of them, in this order."""

    def decorate(command: _F) -> _F:
        for decorator in reversed(decorators):
            command = decorator(command)
        return command

    return decorate


class _PortRange(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``LOWEST-HIGHEST``."""

    name = "range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        match = _RANGE.fullmatch(str(value))
        if match is None or int(match[1]) > int(match[2]):
            self.fail(f"{value!r} is not of the form <lowest port>-<highest port>", param, ctx)
        return int(match[1]), int(match[2])


hosting_flags: Final = _flags(
    boolean("--allow-sagemaker", default=False, help="Serve SageMaker's routes /ping and /invocations."),
    click.option(
        "--sagemaker-port",
        type=click.IntRange(0, 65535),
        default=8080,
        show_default=True,
        help="Port for SageMaker; 0 takes a free one.",
    ),
    click.option(
        "--sagemaker-safe-port-range",
        type=_PortRange(),
        metavar="LOWEST-HIGHEST",
        help="Refuse to start with another endpoint on a port outside this range.",
    ),
    boolean(
        "--allow-vertex-ai",
        default=False,
        help="Serve the routes of Vertex AI that AIP_..._ROUTE name.",
    ),
    click.option(
        "--vertex-ai-port",
        type=click.IntRange(0, 65535),
        default=8080,
        envvar="AIP_HTTP_PORT",
        show_default=True,
        help="Port for Vertex AI; 0 takes a free one. AIP_HTTP_PORT sets it, too.",
    ),
    click.option(
        "--vertex-ai-default-model",
        default="",
        metavar="MODEL",
        help="The model of Vertex AI's predictions; not needed if only one is loaded.",
    ),
)
"""The flags of both platforms."""


def take_sagemaker(values: dict[str, Any]) -> SageMakerOptions | None:
    """Take the flags for SageMaker out of ``values``; None if it is not served.

    Raises:
        click.UsageError: a variable of the environment has a value without a meaning.
    """
    allowed, port = values.pop("allow_sagemaker"), values.pop("sagemaker_port")
    safe_ports = values.pop("sagemaker_safe_port_range")
    try:
        return SageMakerOptions.of(os.environ, port, safe_ports) if allowed else None
    except InvalidArgumentError as error:
        raise click.UsageError(f"--allow-sagemaker: {error}") from error


def take_vertex(values: dict[str, Any]) -> VertexOptions | None:
    """Take the flags for Vertex AI out of ``values``; None if it is not served.

    Raises:
        click.UsageError: the environment has no routes.
    """
    allowed, port = values.pop("allow_vertex_ai"), values.pop("vertex_ai_port")
    model = values.pop("vertex_ai_default_model")
    try:
        return VertexOptions.of(os.environ, port, model) if allowed else None
    except InvalidArgumentError as error:
        raise click.UsageError(f"--allow-vertex-ai: {error}") from error


class _MetricsSetting(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``SETTING=VALUE`` with Triton's settings."""

    name = "setting"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        setting, _, text = str(value).partition("=")
        if not setting or not text or "," in setting:
            self.fail(f"--metrics-config option format is <setting>=<value>. Got {value}", param, ctx)
        try:
            read_metrics_settings({setting: text})
        except InvalidArgumentError as error:
            self.fail(str(error), param, ctx)
        return setting, text


metrics_flags: Final = _flags(
    click.option(
        "--metrics-port",
        type=click.IntRange(0, 65535),
        help="Port for metrics; 0 takes a free one.  [default: 8002, or a free one beside --http-port=0]",
    ),
    click.option(
        "--metrics-config",
        type=_MetricsSetting(),
        multiple=True,
        metavar="SETTING=VALUE",
        help="counter_latencies, summary_latencies or histogram_latencies=BOOLEAN, "
        "summary_quantiles=QUANTILE:ERROR,...; repeat for more.",
    ),
)
"""The flags for metrics."""


def take_metrics_settings(values: dict[str, Any]) -> MetricsSettings:
    """Take ``metrics_config`` out of ``values``: what the metrics show of latencies."""
    return read_metrics_settings(dict(values.pop("metrics_config")))


def take_port(values: dict[str, Any], name: str, default: int) -> int:
    """Take the port ``name`` out of ``values``; ``default`` where it is not given."""
    port: int | None = values.pop(name)
    return default if port is None else port


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpTlsOptions:
    """The flags of TLS over HTTP, named after Triton's for gRPC."""

    use_ssl: bool = setting(False, "TLS for HTTP; needs the server's certificate and key.", "--http-use-ssl")
    mutual: bool = setting(
        False, "TLS; clients need a certificate signed by --http-root-cert.", "--http-use-ssl-mutual"
    )
    certificate: str = setting("", "Certificate of the server (PEM).", "--http-server-cert", metavar="FILE")
    key: str = setting("", "Key of the server (PEM).", "--http-server-key", metavar="FILE")
    root: str = setting("", "CA certificate for client certificates (PEM).", "--http-root-cert", metavar="FILE")
    metrics: bool = setting(False, "TLS for the metrics port, with the certificates of HTTP.", "--metrics-use-ssl")


@dataclass(frozen=True, slots=True)
class HttpTls:
    """None for a port without TLS."""

    http: TlsFiles | None = None
    metrics: TlsFiles | None = None


def take_http_tls(values: dict[str, Any]) -> tuple[HttpTls, tuple[str, ...]]:
    """Take the flags' values out of ``values``: what is served with TLS, and warnings."""
    given = take(HttpTlsOptions, values)
    files = TlsFiles("HTTP", given.certificate, given.key, given.root, given.mutual, ("http/1.1",))
    tls = HttpTls(
        files if given.use_ssl or given.mutual else None,
        replace(files, service="the metrics port") if given.metrics else None,
    )
    unused = (given.certificate or given.key or given.root) and tls == HttpTls()
    warning = "HTTP is served WITHOUT TLS: certificates and keys have no effect without --http-use-ssl"
    return tls, (warning,) if unused else ()


#: What the key of a restricted protocol is prefixed with to make the name of its header.
GRPC_PREFIX: Final = "triton-grpc-protocol-"

Restricted = tuple[tuple[Api, ...], Restriction]

_KEY: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_GRPC_KEY: Final = re.compile(r"[0-9A-Za-z_.-]+")


class _Restricted(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.5
    """``NAME[,NAME...]:KEY=VALUE``; the value goes on to the end, whatever is in it."""

    def __init__(self, kind: str, key: re.Pattern[str], prefix: str) -> None:
        self.name = kind
        self._key = key
        self._prefix = prefix

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Restricted:
        if isinstance(value, tuple):
            return value
        names, _, pair = str(value).partition(":")
        key, _, secret = pair.partition("=")
        if not (names and key and secret) or "=" in names:
            self.fail(f"its format is '<{self.name}>[,<{self.name}>...]:<key>=<value>'", param, ctx)
        if self._key.fullmatch(key) is None:
            self.fail("its key has characters that the name of a header cannot have", param, ctx)
        header = self._prefix + (key.lower() if self._prefix else key)
        apis = tuple(self._api(name, param, ctx) for name in names.split(","))
        return apis, Restriction(header, secret.encode(errors="surrogateescape"))

    def _api(self, name: str, param: click.Parameter | None, ctx: click.Context | None) -> Api:
        try:
            return Api(name)
        except ValueError:
            meant = did_you_mean(name, list(Api))
            self.fail(f"unknown restricted {self.name} '{name}' (there are {', '.join(Api)}){meant}", param, ctx)


RESTRICTED_API: Final = _Restricted("api", _KEY, "")
RESTRICTED_PROTOCOL: Final = _Restricted("protocol", _GRPC_KEY, GRPC_PREFIX)


def restrictions(flag: str, given: Sequence[Restricted]) -> dict[Api, Restriction]:
    """The restrictions that all uses of ``flag`` make together.

    Raises:
        click.UsageError: two are about the same part of the API.
    """
    found: dict[Api, Restriction] = {}
    for apis, restriction in given:
        for api in apis:
            if api in found:
                raise click.UsageError(f"{flag}: restricted '{api}' can not be specified in multiple config groups")
            found[api] = restriction
    return found
